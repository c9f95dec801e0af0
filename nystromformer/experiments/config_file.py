"""From a config file to a checked Config, in the same way for every command.

A file's `get_config` returns a ConfigDict; --config.group.key=value changes it. What
comes out is a `Config`, whose keys and types have been checked.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import config_flags

from lra_tasks.paths import local_path
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_errors import (
    format_missing_key,
    is_of_user_function,
)
from nystromformer.experiments.plugins import absolute_names

FOLDERS_OF_DATA = ("data_dir", "source_dir")
NO_FOLDER = (None, "", "None")  # --config.task.data_dir=None gives the word


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
    flag_values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=flag_values, sys_argv=argv)
    try:
        flag_values(argv)
        config: Any = flag_values["config"].value
        config.to_dict()  # only now a missing file is an error
    except (flags.Error, OSError, TypeError, ValueError) as error:
        # Above the last line stands the traceback of the config file.
        raise ConfigError(str(error).splitlines()[-1]) from error
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
    groups = flag.value.to_dict()
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
