"""The config of a run: from a config file and flags, or from the folder of a run.

A file's `get_config` returns a ConfigDict; --config.group.key=value changes it. What
comes out is a `Config`, whose keys and types have been checked. A run keeps it in its
config.json, beside which its result.json stands in the end.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from etils import epath
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import config_flags

from lra_tasks.paths import local_path
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.plugins import (
    absolute_names,
    format_missing_key,
    format_parse_error,
    is_of_user_function,
    load_modules,
)
from nystromformer.run_files import (
    CONFIG_FILE,
    RESULT_FILE,
    SETTINGS_WITHOUT_EFFECT,
    WEIGHTS_SHA256,
)

FOLDERS_OF_DATA = ("data_dir", "source_dir")
NO_FOLDER = (None, "", "None")  # --config.task.data_dir=None gives the word
# Settings that may change while a run is stopped.
NOT_COMPARED = SETTINGS_WITHOUT_EFFECT | {"task.source_dir", "preset"}
# Paths that are compared by their last part: the rest may have moved.
COMPARED_BY_NAME = ("train.init_from", "task.tokenizer")


class NumberOrNone(flags.ArgumentParser):
    """A number, or the word None: a flag of a key whose value may be None."""

    def __init__(self, parser: flags.ArgumentParser):
        self.parser = parser

    def parse(self, argument: Any) -> Any:
        return None if argument == "None" else self.parser.parse(argument)

    def flag_type(self) -> str:
        return self.parser.flag_type()


# The schema refuses None where a number is needed.
config_flags.register_flag_parser_for_type(int, NumberOrNone(flags.IntegerParser()))
config_flags.register_flag_parser_for_type(float, NumberOrNone(flags.FloatParser()))


def load_config(
    file: str, changes: Mapping[str, Any] | None = None, load: Sequence[str] = ()
) -> Config:
    """Loads a config file, as a command with the flag --config=FILE does.

    Args:
      file: FILE.py[:ATTENTION,PRESET].
      changes: values by flat keys; {"train.seed": 1} is --config.train.seed=1.
      load: modules that a run imports, beside those that the file names.

    Raises:
      ConfigError: for a file that cannot be read, and for keys and values that are not
        of the schema.
      DataError: for a folder of data that is not on a disk.
    """
    return config_from_flags(parse_config_flags(file, changes), load)


def read_settings(file: str) -> dict[str, Any]:
    """Returns the settings of a config file as they stand there, by flat keys.

    Args:
      file: FILE.py[:ATTENTION,PRESET].

    Raises:
      ConfigError: for a file that cannot be read.
    """
    flag: Any = parse_config_flags(file)["config"]
    return flatten_dict(flag.value.to_dict(), sep=".")


def parse_config_flags(
    file: str, changes: Mapping[str, Any] | None = None
) -> flags.FlagValues:
    """Parses --config=FILE and, for each change, --config.group.key=value.

    Args:
      file: FILE.py[:ATTENTION,PRESET].
      changes: values by flat keys.

    Returns:
      Flags of their own, of which `config` is the ConfigDict.

    Raises:
      ConfigError: for a file that cannot be read, a key that its config does not have,
        and a value of a different type.
    """
    words = [f"--config.{key}={value}" for key, value in (changes or {}).items()]
    argv = ["load_config", f"--config={file}", *words]
    # ml_collections imports every config file under this one name, and would leave the
    # functions of the last file to one that has none.
    sys.modules.pop("config_config", None)
    flag_values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=flag_values, sys_argv=argv)
    try:
        flag_values(argv)
        config: Any = flag_values["config"].value
        config.to_dict()  # only now a missing file is an error
    except (flags.Error, OSError, TypeError, ValueError) as error:
        raise ConfigError(format_parse_error(error)) from error
    except (AttributeError, KeyError) as error:
        if is_of_user_function(error):
            raise  # a bug in the config file
        raise ConfigError(format_missing_key(error)) from error
    return flag_values


def config_from_flags(
    flag_values: flags.FlagValues, load: Sequence[str] = ()
) -> Config:
    """Returns the config that parsed flags describe.

    The folders of its data become absolute, since a later command may read the run
    from elsewhere; so do the paths of modules. If the command line names a different
    objective than the file, it alone sets the options: those of the file are left out.

    Args:
      flag_values: flags with one of the name "config", made by `DEFINE_config_file`.
      load: modules that a run imports, beside those that the file names.

    Raises:
      ConfigError: for a key or value that is not of the schema, and for another
        attention than the file's.
      DataError: for a folder of data that is not on a disk.
    """
    flag: Any = flag_values["config"]
    try:
        groups = flag.value.to_dict()  # only now a missing file is an error
    except OSError as error:
        raise ConfigError(format_parse_error(error)) from error
    overrides = config_flags.get_override_values(flag)
    groups["overrides"] = overrides
    file = config_flags.get_config_filename(flag)
    if "attention.name" in overrides:
        _check_attention_name(file, overrides["attention.name"])
    objective = overrides.get("objective.name")
    if objective and objective != read_settings(file)["objective.name"]:
        groups["objective"] = unflatten_dict(overrides, sep=".")["objective"]
    groups["load"] = list(absolute_names([*groups.get("load", ()), *load]))
    task = groups.get("task", {})
    for key in FOLDERS_OF_DATA:
        if task.get(key) not in NO_FOLDER:
            task[key] = str(local_path(task[key]))
    return Config.from_mapping(groups)


def _check_attention_name(file: str, name: str) -> None:
    """Raises ConfigError if a flag names a different attention than the file.

    The options would be those of the file's attention.
    """
    own_name = read_settings(file)["attention.name"]
    if name != own_name:
        path = file.partition(":")[0]
        raise ConfigError(
            f"config.attention.name={name} keeps the options of {own_name}: name the "
            f"attention behind the colon, as in --config={path}:{name}"
        )


def format_config(config: Config) -> str:
    """Returns the whole config, a line for each key as on the command line."""
    groups = config.to_mapping()
    del groups["overrides"]  # these values stand in their groups
    settings = flatten_dict(groups, sep=".")
    return "\n".join(f"config.{key} = {value!r}" for key, value in settings.items())


def compared_settings(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that change a run's numbers, by flat keys, as JSON has them.

    Args:
      groups: a config, as in config.json.
    """
    copied_groups: dict[str, Any] = json.loads(json.dumps(groups))
    copied_groups.pop("overrides", None)  # their values stand in the groups
    settings: dict[str, Any] = flatten_dict(copied_groups, sep=".")
    for key in COMPARED_BY_NAME:
        if settings.get(key):
            settings[key] = Path(settings[key]).name
    for key in NOT_COMPARED:
        settings.pop(key, None)
    return settings


def read_config(workdir: epath.Path) -> Config:
    """Reads the config of a run, and imports the modules that it names.

    Raises:
      ConfigError: if the folder holds no run, or its config is not of this version.
    """
    path = workdir / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{workdir} is not a run: it has no {CONFIG_FILE}")
    try:
        groups = json.loads(path.read_text())
        groups.pop(WEIGHTS_SHA256, None)
        load_modules(groups.get("load", ()))
        return Config.from_mapping(groups)
    except ValueError as error:  # ConfigError is one, and so are the errors of JSON
        raise ConfigError(f"{path} cannot be used: {error}") from error


def read_result(workdir: epath.Path) -> dict[str, Any] | None:
    """Reads the result of a run; returns None if it is not finished."""
    path = workdir / RESULT_FILE
    return json.loads(path.read_text()) if path.exists() else None


def read_weights_sha256(workdir: epath.Path) -> str | None:
    """Reads which weights belong to the config of a run.

    Returns:
      Their sha256, from config.json where they were imported or exported, or from
      result.json; None for a run that is not finished.
    """
    sha256 = json.loads((workdir / CONFIG_FILE).read_text()).get(WEIGHTS_SHA256)
    result = read_result(workdir)
    if sha256 is None and result is not None:
        sha256 = result.get("params_sha256")
    return sha256
