"""The config of a run, from a config file and flags.

A command's --config names a file, with an attention and presets behind a colon, as in
`configs/listops.py:nystrom,quick`. `load_config` runs the file's `get_config`, which
returns a ConfigDict with a value for each key: configs/defaults.py makes it. Each
--config.group.key=value of the command line then changes one of them, as the type of
the value asks. Of the ConfigDict `Config.from_mapping` makes a frozen `Config`, or
says in one line which key or value cannot be. `build_experiment` checks the rest, for
which it makes the task, the model and the objective.
"""

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict, config_flags

from lra_tasks import TASKS
from lra_tasks.paths import local_path
from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.objectives import OBJECTIVES
from nystromformer.experiments.plugins import absolute_names, import_file

FOLDERS_OF_DATA = ("data_dir", "source_dir")
# The line of a config file that defines the function.
GET_CONFIG = re.compile(r"^(def get_config\(|get_config =)", re.MULTILINE)
# The config files that have registered something. When one is run again, what it
# imports registers nothing more.
registering_files: set[str] = set()


class ValueOrNone(flags.ArgumentParser):
    """A value, or None for the word None: a flag of a key whose value may be None."""

    def __init__(self, parser: flags.ArgumentParser):
        self.parser = parser

    def parse(self, argument: Any) -> Any:
        if argument == "None":
            return None
        try:
            return self.parser.parse(argument)
        except ValueError as error:
            raise ValueError(f"must be {self.parser.syntactic_help}") from error

    def flag_type(self) -> str:
        return self.parser.flag_type()


# The schema refuses None where a value is needed.
config_flags.register_flag_parser_for_type(int, ValueOrNone(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, ValueOrNone(flags.FloatParser()))
config_flags.register_flag_parser_for_type(str, ValueOrNone(flags.ArgumentParser()))


def load_config(
    file: str, changes: Mapping[str, Any] | None = None, load: Sequence[str] = ()
) -> Config:
    """Loads a config file, and changes some of its values.

    The folders of its data become absolute, since a later command may read the run
    from elsewhere; so do the paths of modules. If `changes` name a different objective
    than the file, they alone set its options: those of the file are left out. A file
    that registers a task, an attention or an objective becomes one of the modules that
    the run imports, so that whoever reads the run imports it, too.

    Args:
      file: FILE.py[:ATTENTION,PRESET].
      changes: values by flat keys; {"train.seed": 1} is --config.train.seed=1.
      load: modules that the run imports, beside those that the file names.

    Raises:
      ConfigError: for a file that cannot be read, for keys and values that are not of
        the schema, and for another attention than the file's.
      DataError: for a folder of data that is not on a disk.
    """
    (path,) = absolute_names([file.partition(":")[0]])
    registered_before = [dict(table) for table in (TASKS, ATTENTIONS, OBJECTIVES)]
    config_dict = _run_file(file)
    if registered_before != [TASKS, ATTENTIONS, OBJECTIVES]:
        registering_files.add(path)
    if path in registering_files:
        load = [*load, path]
    settings = _flatten(config_dict)
    changes = changes or {}
    check_values(changes, settings)
    overrides = _change_values(config_dict, changes)

    groups = config_dict.to_dict()
    groups["overrides"] = overrides
    if "attention.name" in overrides:
        name = overrides["attention.name"]
        _check_attention_name(file, own_name=settings["attention.name"], name=name)
    objective = overrides.get("objective.name")
    if objective and objective != settings["objective.name"]:
        groups["objective"] = unflatten_dict(overrides, sep=".")["objective"]
    groups["load"] = list(absolute_names([*groups.get("load", ()), *load]))
    task = groups.get("task", {})
    for key in FOLDERS_OF_DATA:
        if task.get(key):
            task[key] = str(local_path(task[key]))
    return Config.from_mapping(groups)


def read_settings(file: str) -> dict[str, Any]:
    """Returns the settings of a config file as they stand there, by flat keys.

    Args:
      file: FILE.py[:ATTENTION,PRESET].

    Raises:
      ConfigError: for a file that cannot be read.
    """
    return _flatten(_run_file(file))


def check_values(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Checks that a change is of no group and of no key below a value, and has a value.

    Only a key that is true or false needs none.

    Args:
      changes: values by flat keys; one that is not written is True or False.
      settings: those of the config file, by flat keys.

    Raises:
      ConfigError: for any other change.
    """
    for key, value in changes.items():
        for name in settings:
            if key.startswith((f"{name}.", f"{name}[")):
                raise ConfigError(
                    f"no such key in the config: '{key}'; change the whole value of "
                    f"--config.{name}"
                )
        if any(name.startswith(f"{key}.") for name in settings):
            raise ConfigError(
                f"--config.{key} is a group: change one of its keys, as in "
                f"--config.{key}.KEY=VALUE"
            )
        is_missing = isinstance(value, bool)
        if is_missing and not isinstance(settings.get(key, value), bool):
            raise ConfigError(f"--config.{key} needs a value: --config.{key}=VALUE")


def _run_file(file: str) -> ConfigDict:
    """Runs a config file, and returns what its `get_config` returns.

    Errors that are no mistake in a value, such as a KeyError, are bugs of the file, and
    show their traceback.

    Args:
      file: FILE.py[:ATTENTION,PRESET].

    Raises:
      ConfigError: for a file that cannot be read or makes no ConfigDict, and for
        attentions and presets that it does not know.
    """
    name, *words = file.split(":", 1)
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        meant = Path("configs", f"{path.stem}.py")
        if meant.is_file():
            raise ConfigError(f"there is no config file {path}: name {meant}")
        raise ConfigError(f"there is no config file {path}{_list_configs(path.parent)}")
    try:
        module = import_file(str(path), "config_file")
        if not hasattr(module, "get_config"):
            raise ConfigError(
                f"{path} is no config file: it defines no get_config"
                f"{_list_configs(path.parent)}"
            )
        config_dict = module.get_config(*words)
    except TypeError as error:  # a mistake in the file, unlike the errors below
        raise ConfigError(
            f"{path}{_line_of(error, path)}: {_in_one_line(error)}"
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(_in_one_line(error)) from error
    if not isinstance(config_dict, ConfigDict):
        raise ConfigError(
            f"{path} is no config file: its get_config returns "
            f"{type(config_dict).__name__}, not a ConfigDict"
        )
    return config_dict


def _change_values(
    config_dict: ConfigDict, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Changes values of a ConfigDict, and returns them by flat keys.

    ml_collections makes flags of the keys of a ConfigDict, and so knows how the text of
    a value is read, such as 1e-3 or None. These flags are not those of the command, as
    they differ from file to file.

    Raises:
      ConfigError: for a key that is not there, and a value of a different type.
    """
    words = [f"--config.{key}={value}" for key, value in changes.items()]
    argv = ["load_config", *words]
    flag_values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", config_dict, flag_values=flag_values, sys_argv=argv
        )
        flag_values(argv)
    except flags.Error as error:  # It is about a value.
        raise ConfigError(_in_one_line(error)) from error
    except (AttributeError, KeyError, ValueError) as error:
        reason = error.args[0]
        if isinstance(reason, KeyError):  # Of a group, ml_collections wraps the error.
            reason = reason.args[0]
        sentences = str(reason).strip().splitlines()
        settings = _flatten(config_dict)
        unknown_keys = [key for key in changes if key not in settings]
        advice = ""
        if unknown_keys and len(sentences) == 1:  # ml_collections has no advice.
            advice = _advise(unknown_keys[0], settings)
        raise ConfigError(
            f"no such key in the config: {'. '.join(sentences)}{advice}"
        ) from error
    return config_flags.get_override_values(flag_values["config"])


def _advise(key: str, settings: Mapping[str, Any]) -> str:
    """Says where else a key is that its group lacks, or else what the group has."""
    group, _, name = key.rpartition(".")
    same_names = [
        f"--config.{other}" for other in settings if other.split(".")[-1] == name
    ]
    if same_names:
        return f"; there is {' and '.join(same_names)}"
    siblings = [
        other.removeprefix(f"{group}.")
        for other in settings
        if other.startswith(f"{group}.")
    ]
    if not siblings:
        return ""
    chosen = settings.get(f"{group}.name")
    owner = f"config.{group} of {chosen}" if chosen else f"config.{group}"
    return f"; {owner} has {', '.join(siblings)}"


def _flatten(config_dict: ConfigDict) -> dict[str, Any]:
    """The values of a ConfigDict by flat keys."""
    return flatten_dict(config_dict.to_dict(), sep=".")


def _in_one_line(error: Exception) -> str:
    """The message of an error, or its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _line_of(error: Exception, path: Path) -> str:
    """Where in a file an error arose, as in ", line 3"; empty if it did elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    file = str(path.absolute())
    lines = [frame.lineno for frame in frames if frame.filename == file]
    return f", line {lines[-1]}" if lines else ""


def _list_configs(folder: Path) -> str:
    """The end of a sentence that names the configs of a folder, or of configs/."""
    configs = _find_configs(folder) or _find_configs(Path("configs"))
    return f"; configs are {', '.join(map(str, configs))}" if configs else ""


def _find_configs(folder: Path) -> list[Path]:
    """The files in a folder that define `get_config`."""
    return [
        path
        for path in sorted(folder.glob("*.py"))
        if GET_CONFIG.search(path.read_text(errors="replace"))
    ]


def _check_attention_name(file: str, own_name: str, name: str | None) -> None:
    """Raises ConfigError if a flag names a different attention than the file.

    The options would be those of the file's attention.
    """
    if name != own_name:
        path, _, words = file.partition(":")
        presets = [word for word in words.split(",") if word and word not in ATTENTIONS]
        other_words = ",".join([f"{name}", *presets])
        raise ConfigError(
            f"config.attention.name={name} keeps the options of {own_name}: name the "
            f"attention behind the colon, --config={path}:{other_words}"
        )


def format_config(config: Config) -> str:
    """Returns the whole config, a line for each key as on the command line."""
    groups = config.to_mapping()
    del groups["overrides"]  # these values stand in their groups
    settings = flatten_dict(groups, sep=".")
    return "\n".join(f"config.{key} = {value!r}" for key, value in settings.items())
