"""The language of ListOps: its vocabulary, and what an expression is worth."""

from collections.abc import Callable, Sequence

import numpy as np

from lra_tasks.split import DataError

# The index is the token id. Written out: a checkpoint relies on the order.
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
VOCABULARY = ("<pad>", *OPERATORS, "]", *DIGITS)
TOKEN_ID = {token: index for index, token in enumerate(VOCABULARY)}
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
    """Token ids, uint8 `[length]`, of an expression; parentheses are dropped."""
    ids = []
    for position, token in enumerate(source.split()):
        if token in ("(", ")"):  # the released files binarise every list with them
            continue
        token_id = TOKEN_ID.get(token, 0)
        if not token_id:  # unknown, or padding
            raise DataError(f"token {position} ({token!r}) is none of ListOps'")
        ids.append(token_id)
    return np.array(ids, np.uint8)


def decode(ids: np.ndarray) -> str:
    """The expression of token ids `[length]`; padding is dropped."""
    return " ".join(VOCABULARY[index] for index in ids if index)


def evaluate(source: str) -> int:
    """The value, 0-9, of an expression nested to any depth.

    Raises DataError, saying at which token (counted from 0, parentheses included).
    """
    open_lists: list[tuple[str, list[int]]] = []  # operator, values of its arguments
    result: int | None = None
    open_parentheses = 0
    for position, token in enumerate(source.split()):
        if token in ("(", ")"):
            open_parentheses += 1 if token == "(" else -1
            if open_parentheses < 0:
                raise DataError(f"token {position} (')') closes nothing")
            continue
        if result is not None:
            where = f"token {position} ({token!r})"
            raise DataError(f"{where} follows the end of the expression")
        if token in APPLY:
            open_lists.append((token, []))
            continue
        if token == "]":
            if not open_lists:
                raise DataError(f"token {position} (']') closes nothing")
            operator, values = open_lists.pop()
            if not values:
                where = f"token {position} (']')"
                raise DataError(f"{where} closes {operator} without arguments")
            value = APPLY[operator](values)
        elif token in DIGITS:
            value = int(token)
        else:
            raise DataError(f"token {position} ({token!r}) is none of ListOps'")
        if open_lists:
            open_lists[-1][1].append(value)
        else:
            result = value
    if open_parentheses:
        raise DataError(f"{open_parentheses} closing parentheses missing at the end")
    if result is None:
        missing = f"{len(open_lists)} closing brackets" if open_lists else "everything"
        raise DataError(f"{missing} missing at the end")
    return result
