"""The options of an attention: what the `__init__` of its class takes by keyword."""

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

from flax import nnx

from nystromformer.validation import check_type


class CommonArguments(TypedDict):
    """The arguments of every attention, which are no options; see `Attention`."""

    num_heads: int
    head_dim: int
    max_length: int
    rngs: nnx.Rngs


class HasOptions:
    """A class that knows its options, with their types and their defaults.

    They are the keyword arguments of its `__init__`, and those of the parent class,
    where `__init__` passes the others on to it:

        def __init__(self, *, window: int = 256, **common: Unpack[CommonArguments]):
            super().__init__(**common)
            self.window = window

    Attributes that a subclass may set:
      paper_options: option -> its value in the paper's experiments, where that is not
        the default.
    """

    paper_options: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        """The options by name, each with its annotation and its default."""
        options = {}
        for owner in _owners_of_options(cls):
            options |= _own_options(owner)
        return options

    @classmethod
    def init_defaults(cls) -> dict[str, Any]:
        """The options that `__init__` does not require, with its defaults."""
        return {
            name: parameter.default
            for name, parameter in cls.options().items()
            if parameter.default is not parameter.empty
        }

    @classmethod
    def complete_options(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns these options with the defaults of all others."""
        return {**cls.init_defaults(), **values}

    @classmethod
    def config_defaults(cls) -> dict[str, Any]:
        """The options with which configs and benchmarks start.

        Those are the paper's: `paper_options`, and the defaults of the others. If a
        class changes the default of an option of its parent class, its configs have
        the new default as well, whatever the parent's `paper_options` say.
        """
        values = {}
        for owner in _owners_of_options(cls):
            for name, parameter in _own_options(owner).items():
                if parameter.default is not parameter.empty:
                    values[name] = parameter.default
            values |= vars(owner).get("paper_options", {})
        return values

    @classmethod
    def check_options(cls, values: Mapping[str, Any]) -> None:
        """Checks the names and the types of options.

        Args:
          values: option -> value.

        Raises:
          ValueError: an unknown option, or one of a wrong type.
        """
        options = cls.options()
        for name, value in values.items():
            if name not in options:
                known_names = ", ".join(options) or "none"
                raise ValueError(
                    f"{cls.__name__} has no option {name!r}; known: {known_names}"
                )
            annotation = options[name].annotation
            if annotation is not inspect.Parameter.empty:
                check_type(f"{name} of {cls.__name__}", value, annotation)


def _owners_of_options(cls: type) -> list[type]:
    """The class and those of its parents whose options it has, parents first."""
    owners = []
    for owner in cls.__mro__:
        owners.append(owner)
        init = vars(owner).get("__init__")
        if init is not None and inspect.getfullargspec(init).varkw is None:
            break  # no argument reaches the parents from here
    return owners[::-1]


def _own_options(owner: type) -> dict[str, inspect.Parameter]:
    """The options that the `__init__` of the class itself names, by name."""
    init = vars(owner).get("__init__")
    if init is None:
        return {}
    options = {}
    for name, parameter in inspect.signature(init).parameters.items():
        is_common = name == "self" or name in CommonArguments.__annotations__
        if not is_common and parameter.kind is not parameter.VAR_KEYWORD:
            annotation = _evaluate(parameter.annotation, init)
            options[name] = parameter.replace(annotation=annotation)
    return options


def _evaluate(annotation: Any, function: Any) -> Any:
    """The type that an annotation of a function names, if it is a string.

    It is `inspect.Parameter.empty` if the module does not know the type: it imported
    the name for type checkers alone.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)
    except NameError:
        return inspect.Parameter.empty
