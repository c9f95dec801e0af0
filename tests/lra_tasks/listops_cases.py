"""The value of an expression of ListOps, written out again."""

import statistics
from collections.abc import Iterable

from lra_tasks.listops import VOCABULARY

APPLY = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def value_of(ids: Iterable[int]) -> int:
    """The value of an expression, by a stack of open operators."""
    stack: list[list] = [[]]
    for token in ids:
        word = VOCABULARY[token]
        if word in APPLY:
            stack.append([word])
        elif word == "]":
            operator, *values = stack.pop()
            stack[-1].append(APPLY[operator](values))
        else:
            stack[-1].append(int(word))
    [[value]] = stack
    return value
