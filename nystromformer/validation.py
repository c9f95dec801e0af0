"""Checks of options (type, range, choices), registered classes and paths.

Tasks use them, too, and so they need nothing but Python.
"""

import numbers
import os
from collections.abc import Iterable
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin


def check_range(
    name: str, value: float, least: float, most: float | None = None, cause: str = ""
) -> None:
    """Raises ValueError unless least ≤ value ≤ most; NaN is outside.

    Args:
      cause: for the message, the setting that `most` depends on.
    """
    if not value >= least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if most is not None and not value <= most:
        condition = f" for {cause}" if cause else ""
        raise ValueError(f"{name} must be at most {most}{condition}, got {value}")


def check_rate(name: str, value: float) -> None:
    """Raises ValueError unless 0 ≤ value < 1; NaN is outside."""
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be in [0, 1), got {value}")


def check_kernel_size(name: str, size: int) -> None:
    """Raises ValueError unless a kernel size is odd and positive, or 0."""
    if size < 0 or (size != 0 and size % 2 == 0):
        raise ValueError(f"{name} must be odd, or 0 for none, got {size}")


def check_choice(name: str, value: object, known: Iterable[object]) -> None:
    """Raises ValueError for a value that is not among the known ones."""
    choices = tuple(known)
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")


def check_type(name: str, value: object, annotation: Any) -> None:
    """Raises ValueError for a value that is not of the annotated type.

    An int is a float, too, and numpy's numbers are numbers. The elements of a list or a
    tuple are not checked.
    """
    if not _is_of_type(value, annotation):
        is_class = isinstance(annotation, type)
        type_name = annotation.__name__ if is_class else str(annotation)
        raise ValueError(f"{name} must be {type_name}, got {value!r}")


def _is_of_type(value: object, annotation: Any) -> bool:
    origin = get_origin(annotation)
    if annotation is Any:
        return True
    if origin is Literal:
        return value in get_args(annotation)
    if origin in (Union, UnionType):
        return any(_is_of_type(value, member) for member in get_args(annotation))
    kind = origin or annotation
    if isinstance(value, bool):  # Python takes a bool for an int.
        return kind is bool
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real)
    if kind in (list, tuple):  # JSON has no tuples: a list stands for one.
        return isinstance(value, list | tuple)
    return isinstance(value, kind)


def is_in_bucket(path: object) -> bool:
    """Returns whether a path is the address of a bucket, as in gs://BUCKET/RUN."""
    return "://" in str(path)


def is_same_class(first: type, second: type) -> bool:
    """Returns whether two classes are one, imported twice or written anew.

    A module may be imported from two places, and a cell of a notebook run again: such
    classes have one qualified name, and files of one name.
    """
    if first.__qualname__ != second.__qualname__:
        return False
    first_file = _file_name(first)
    second_file = _file_name(second)
    if first_file is None or second_file is None:
        return True
    return first_file == second_file


def _file_name(cls: type) -> str | None:
    """The name of the file that a class is written in; None for a notebook's cell.

    The functions of the class know it. Its module does not: all config files have the
    same module name.
    """
    for member in vars(cls).values():
        code = getattr(member, "__code__", None)
        if code is not None and os.path.exists(code.co_filename):
            return os.path.basename(code.co_filename)
    return None
