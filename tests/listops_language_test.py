"""Expressions worked out by hand, and what is said about those that are none."""

import numpy as np
import pytest

from lra_tasks.listops_language import VOCABULARY, decode, encode, evaluate
from lra_tasks.split import DataError


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("7", 7),
        ("[MED 9 1 4 ]", 4),
        ("[MED 8 1 2 3 ]", 2),  # (2 + 3) / 2 truncated
        ("[SM [MIN 5 6 ] [MAX 5 6 ] [SM 9 9 ] ]", 9),  # 5 + 6 + 8 = 19
        ("( ( ( ( [MAX 3 ) 4 ) 7 ) ] )", 7),  # as released
        ("[MAX 1 " * 100_003 + "[SM 7 5 ]" + " ]" * 100_003, 2),  # no recursion
    ],
)
def test_value(source, value):
    assert evaluate(encode(source)) == value


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("7 7", "2 expressions, not one"),
        ("[MAX 1 [MIN 2 3 ]", "1 closing brackets missing"),
        ("[MAX 1 2 ] ]", r"token 4 \('\]'\) closes nothing"),
        ("[MAX 1 [SM ] ]", r"token 3 \('\]'\) closes an empty \[SM"),
        ("( [FIRST 1 ) ]", r"token 0 \('\[FIRST'\)"),
    ],
)
def test_what_is_no_expression(source, message):
    with pytest.raises(DataError, match=message):
        evaluate(encode(source))


def test_vocabulary_is_fixed():
    # Written out again: a checkpoint trained yesterday relies on every place.
    words = "<pad> [MIN [MAX [MED [SM ] 0 1 2 3 4 5 6 7 8 9"
    assert words.split() == list(VOCABULARY)
    ids = encode("( ( ( [SM 3 ) [MIN 0 9 ] ) ] )")
    assert ids.tolist() == [4, 9, 1, 6, 15, 5, 5]
    assert decode(np.concatenate([ids, [0, 0, 0]])) == "[SM 3 [MIN 0 9 ] ]"
