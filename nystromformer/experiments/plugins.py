"""Python files of a user's own: modules of --load, and errors in them or in a config.

The modules register tasks, attentions, …. A run records their names in config.json, and
whoever reads the run imports them.
"""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nystromformer.errors import ConfigError

# These functions of a config file or a module run while flags are parsed.
USER_FUNCTIONS = {"<module>", "get_config"}
# How ml_collections says that a config file is not there.
MISSING_FILE = re.compile(r"config file config_config .*No such file .*: '(.+)'$")
# The name of an error's class in front of its message.
ERROR_CLASS = re.compile(r"^[\w.]+Error: ")
# The line of a config file that defines the function.
GET_CONFIG = re.compile(r"^(def get_config\(|get_config =)", re.MULTILINE)


def load_modules(names: Iterable[str]) -> None:
    """Imports modules, each once.

    Args:
      names: dotted names of modules, or paths of their files, as in "mine.py".

    Raises:
      ConfigError: if there is no such module or file, or the module needs one that is
        not installed.
    """
    for name in absolute_names(names):
        try:
            if name.endswith(".py"):
                _load_file(name)
            elif all(name.split(".")) and "/" not in name:
                importlib.import_module(name)
            else:
                raise ConfigError(
                    f"--load={name}: give the path of a file that ends in .py, or the "
                    "dotted name of a module"
                )
        except ModuleNotFoundError as error:
            raise ConfigError(f"--load={name}: {error}") from error


def absolute_names(names: Iterable[str]) -> tuple[str, ...]:
    """Returns the names of modules, each once, with absolute paths of files."""
    unique: dict[str, None] = {}
    for name in names:
        if name.endswith(".py"):
            name = str(Path(name).expanduser().absolute())
        unique[name] = None
    return tuple(unique)


def _load_file(path: str) -> None:
    """Imports a file as a module whose name is its path, once."""
    if path in sys.modules:
        return
    if not os.path.exists(path):
        # The file of an old run may have moved, and been loaded from its new place.
        loaded_files = {os.path.basename(name) for name in sys.modules}
        if os.path.basename(path) in loaded_files:
            return
        raise ConfigError(
            f"--load={path}: no such file; if it has moved, --load it from its place "
            "now, under the same name"
        )

    spec: Any = importlib.util.spec_from_file_location(path, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path] = module  # pickle and dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # In a notebook the file may be mended, and loaded again.
        del sys.modules[path]
        raise


def is_of_user_function(error: Exception) -> bool:
    """Returns whether an error was raised inside one of USER_FUNCTIONS: it is a bug."""
    frames = traceback.extract_tb(error.__traceback__)
    return not USER_FUNCTIONS.isdisjoint(frame.name for frame in frames)


def format_missing_key(error: AttributeError | KeyError) -> str:
    """Returns, in one line, what ml_collections says about a key that is not there.

    It may say so by an error that holds another one. The key may be the function of the
    config file.
    """
    if isinstance(error, AttributeError) and error.name == "get_config":
        config_module: Any = error.obj
        return _format_missing_function(Path(config_module.__file__))
    reason = error.args[0]
    if isinstance(reason, KeyError):
        sentences = str(reason.args[0]).splitlines()
        return f"no such key in the config: {'. '.join(sentences)}"
    return str(reason).strip().splitlines()[-1]


def format_parse_error(error: Exception) -> str:
    """Returns, in one line, why flags or the config file they name were refused."""
    message = " ".join(str(error).split())
    missing_file = MISSING_FILE.search(message)
    if missing_file:
        file = Path(missing_file[1])
        return f"there is no config file {file}{_list_configs(file.parent)}"
    # Above the last line stands the traceback of a config file.
    return ERROR_CLASS.sub("", str(error).strip().splitlines()[-1])


def _format_missing_function(file: Path) -> str:
    """Says that a file is no config, and names those beside it."""
    configs = _list_configs(file.parent)
    return f"{file} is no config file: it defines no get_config{configs}"


def _list_configs(folder: Path) -> str:
    """The end of a sentence that names the configs of a folder, if it has any."""
    configs = [
        str(path)
        for path in sorted(folder.glob("*.py"))
        if GET_CONFIG.search(path.read_text(errors="replace"))
    ]
    return f"; configs are {', '.join(configs)}" if configs else ""
