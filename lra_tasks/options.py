"""The types of a task's options."""

from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lra_tasks.errors import DataError


def check_option_types(options: Any, name: str) -> None:
    """Checks that each field of a dataclass has a value of its type.

    Args:
      options: the dataclass.
      name: the task's name, for messages.

    Raises:
      DataError: for a value of a different type.
    """
    hints = get_type_hints(type(options))
    for field in fields(options):
        hint = hints[field.name]
        value = getattr(options, field.name)
        if not _is_of_type(value, hint):
            type_name = hint.__name__ if isinstance(hint, type) else str(hint)
            raise DataError(f"{name}: {field.name} must be {type_name}, not {value!r}")


def _is_of_type(value: object, hint: Any) -> bool:
    """Whether a value is of a type; the elements of a list or tuple are not checked.

    `nystromformer.validation` has such a function, too: tasks must not need a model.
    """
    if hint is Any:
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(_is_of_type(value, member) for member in get_args(hint))
    kind = get_origin(hint) or hint
    if isinstance(value, bool):  # Python takes a bool for an int, too.
        return kind is bool
    if kind is float:
        return isinstance(value, int | float)
    if kind in (list, tuple):  # JSON has no tuples: a list stands for one.
        return isinstance(value, list | tuple)
    return isinstance(value, kind)
