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
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import config_flags

from lra_tasks import TASKS
from lra_tasks.paths import local_path
from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.objectives import OBJECTIVES
from nystromformer.experiments.plugins import absolute_names

FOLDERS_OF_DATA = ("data_dir", "source_dir")
# These functions of a config file run while it is loaded.
USER_FUNCTIONS = {"<module>", "get_config"}
# The name of an error's class in front of its message.
ERROR_CLASS = re.compile(r"^[\w.]+Error: ")
# The line of a config file that defines the function.
GET_CONFIG = re.compile(r"^(def get_config\(|get_config =)", re.MULTILINE)


class ValueOrNone(flags.ArgumentParser):
    """A value, or None for the word None: a flag of a key whose value may be None."""

    def __init__(self, parser: flags.ArgumentParser):
        self.parser = parser

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self.parser.parse(argument)

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
    path = file.partition(":")[0]
    registered_before = [dict(table) for table in (TASKS, ATTENTIONS, OBJECTIVES)]
    changes = changes or {}
    if any(isinstance(value, bool) for value in changes.values()):
        check_values(changes, read_settings(file))
    flag = _run_file(file, changes)
    if registered_before != [TASKS, ATTENTIONS, OBJECTIVES]:
        load = [*load, path]

    groups = flag.value.to_dict()
    overrides = config_flags.get_override_values(flag)
    groups["overrides"] = overrides
    if "attention.name" in overrides:
        _check_attention_name(file, overrides["attention.name"])
    objective = overrides.get("objective.name")
    if objective and objective != read_settings(file)["objective.name"]:
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
    return flatten_dict(_run_file(file, {}).value.to_dict(), sep=".")


def check_values(changes: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Checks that only a key that is true or false is changed without a value.

    Args:
      changes: values by flat keys; one that is not written is True or False.
      settings: those of the config file, by flat keys.

    Raises:
      ConfigError: for a different key.
    """
    for key, value in changes.items():
        is_missing = isinstance(value, bool)
        if is_missing and not isinstance(settings.get(key, value), bool):
            raise ConfigError(f"--config.{key} needs a value: --config.{key}=VALUE")


def _run_file(file: str, changes: Mapping[str, Any]) -> Any:
    """Runs a config file, and changes values of its ConfigDict.

    ml_collections makes flags of the keys of a ConfigDict, and so knows how the text of
    a value is read, such as 1e-3 or None. These flags are not those of the command, as
    they differ from file to file.

    Args:
      file: FILE.py[:ATTENTION,PRESET].
      changes: values by flat keys.

    Returns:
      The flag --config, whose `value` is the changed ConfigDict.

    Raises:
      ConfigError: for a file that cannot be read, a key that its config does not have,
        and a value of a different type.
    """
    path = Path(file.partition(":")[0])
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"there is no config file {path}{_list_configs(path.parent)}")
    words = [f"--config.{key}={value}" for key, value in changes.items()]
    argv = ["load_config", f"--config={file}", *words]
    # ml_collections imports every config file under this one name, and would leave the
    # functions of the last file to one that has none.
    sys.modules.pop("config_config", None)
    flag_values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=flag_values, sys_argv=argv)
    try:
        flag_values(argv)
        flag: Any = flag_values["config"]
        flag.value.to_dict()  # only now a file that cannot be read is an error
    except (flags.Error, OSError, TypeError, ValueError) as error:
        # Above the last line stands the traceback of a config file.
        message = str(error).strip().splitlines()[-1]
        raise ConfigError(ERROR_CLASS.sub("", message)) from error
    except (AttributeError, KeyError) as error:
        if _is_of_user_function(error):
            raise  # a bug in the config file
        if changes:
            _run_file(file, {})  # A file that makes no config at all fails here.
        raise ConfigError(_format_missing_key(path, error)) from error
    return flag


def _is_of_user_function(error: Exception) -> bool:
    """Whether an error was raised inside one of USER_FUNCTIONS: it is a bug."""
    frames = traceback.extract_tb(error.__traceback__)
    return not USER_FUNCTIONS.isdisjoint(frame.name for frame in frames)


def _format_missing_key(path: Path, error: AttributeError | KeyError) -> str:
    """Says in one line which key is not there, or that the file makes no config."""
    if isinstance(error, AttributeError) and error.name == "get_config":
        configs = _list_configs(path.parent)
        return f"{path} is no config file: it defines no get_config{configs}"
    if isinstance(error, AttributeError) and error.name == "to_dict":
        kind = type(error.obj).__name__
        reason = f"its get_config returns {kind}, not a ConfigDict"
        return f"{path} is no config file: {reason}"
    reason = error.args[0]
    if isinstance(reason, KeyError):  # Of a group, ml_collections wraps the error.
        reason = reason.args[0]
    sentences = str(reason).strip().splitlines()
    return f"no such key in the config: {'. '.join(sentences)}"


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


def _check_attention_name(file: str, name: str | None) -> None:
    """Raises ConfigError if a flag names a different attention than the file.

    The options would be those of the file's attention.
    """
    own_name = read_settings(file)["attention.name"]
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
