"""Errors of config files: a bug, no `get_config`, or a key that a config lacks."""

import re
import traceback
from pathlib import Path
from typing import Any

# These functions of a config file or a module run while flags are parsed.
USER_FUNCTIONS = {"<module>", "get_config"}
# The line of a config file that defines the function.
GET_CONFIG = re.compile(r"^(def get_config\(|get_config =)", re.MULTILINE)


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


def _format_missing_function(file: Path) -> str:
    """Says that a file is no config, and names those beside it."""
    configs = [
        str(path)
        for path in sorted(file.parent.glob("*.py"))
        if GET_CONFIG.search(path.read_text(errors="replace"))
    ]
    names = f"; configs are {', '.join(configs)}" if configs else ""
    return f"{file} is no config file: it defines no get_config{names}"
