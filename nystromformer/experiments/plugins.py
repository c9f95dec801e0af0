"""Modules of a user's own, which --load names; they register tasks, attentions, ….

A run records their names in config.json, and whoever reads the run imports them.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nystromformer.errors import ConfigError


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

    import_file(path, path)


def import_file(path: str, name: str) -> Any:
    """Runs a file of Python as a new module of that name, and returns the module."""
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # In a notebook the file may be mended, and loaded again.
        del sys.modules[name]
        raise
    return module
