"""The language of ListOps: its vocabulary, and the value of an expression."""

from collections.abc import Callable, Sequence

import numpy as np

from lra_tasks.split import DataError

# The index is the token id. Written out: a checkpoint relies on the order.
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
VOCABULARY = ("<pad>", *OPERATORS, "]", *DIGITS)
TOKEN_ID = {token: index for index, token in enumerate(VOCABULARY) if index}
FIRST_OPERATOR, CLOSE, FIRST_DIGIT = (TOKEN_ID[token] for token in ("[MIN", "]", "0"))


def _median(values: Sequence[int]) -> int:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


APPLY: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": _median,  # truncated to an integer
    "[SM": lambda values: sum(values) % 10,
}


def encode(source: str) -> np.ndarray:
    """Token ids, uint8 `[length]`, of an expression.

    The released files binarise every list with parentheses: they are dropped, as they
    say no more than the brackets.

    Raises:
      DataError: naming the token, counted from 0 without parentheses.
    """
    tokens = source.replace("(", " ").replace(")", " ").split()
    try:
        ids = bytes(map(TOKEN_ID.__getitem__, tokens))
    except KeyError as error:
        token = error.args[0]
        position = tokens.index(token)
        raise DataError(
            f"token {position} ({token!r}) is not a token of ListOps"
        ) from None
    return np.frombuffer(ids, np.uint8)


def decode(ids: np.ndarray) -> str:
    """The expression of token ids `[length]`; padding is dropped."""
    return " ".join(VOCABULARY[index] for index in ids if index)


def evaluate(ids: np.ndarray) -> int:
    """The value, 0-9, of an expression's token ids `[length]`, nested to any depth.

    Raises:
      DataError: naming the token, counted from 0, that does not fit in there.
    """
    outer: list[tuple[int, list[int]]] = []  # what goes on when this list ends
    operator, values = 0, []  # of this list; 0: outside of any
    for position, token in enumerate(ids.tobytes()):
        if token >= FIRST_DIGIT:
            values.append(token - FIRST_DIGIT)
        elif token != CLOSE:
            outer.append((operator, values))
            operator, values = token, []
        else:
            if not operator:
                raise DataError(f"token {position} (']') closes nothing")
            name = VOCABULARY[operator]
            if not values:
                raise DataError(f"token {position} (']') closes an empty {name}")
            value = APPLY[name](values)
            operator, values = outer.pop()
            values.append(value)
    if outer:
        raise DataError(f"{len(outer)} closing brackets missing at the end")
    if len(values) != 1:
        raise DataError(f"{len(values)} expressions, not one")
    return values[0]
