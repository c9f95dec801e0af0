"""The types of a task's options."""

from dataclasses import asdict
from typing import Any, get_args, get_type_hints

from lra_tasks.errors import DataError


def check_option_types(options: Any, name: str) -> None:
    """Checks that each field of a dataclass has a value of its type.

    Args:
      options: the dataclass.
      name: the task's name, for messages.

    Raises:
      DataError: for a value of another type.
    """
    hints = get_type_hints(type(options))
    for option, value in asdict(options).items():
        hint = hints[option]
        types = (hint, *get_args(hint))
        if type(value) is bool:
            is_of_type = bool in types  # Python takes a bool for an int, too.
        elif type(value) is int:
            is_of_type = int in types or float in types
        else:
            is_of_type = isinstance(value, hint)
        if not is_of_type:
            type_name = getattr(hint, "__name__", str(hint))
            raise DataError(f"{name}: {option} must be {type_name}, not {value!r}")
