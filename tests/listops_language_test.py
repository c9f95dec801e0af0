"""Expressions worked out by hand, and what is said about those that are none."""

import numpy as np
import pytest

from lra_tasks.listops_language import VOCABULARY, decode, encode, evaluate
from lra_tasks.split import DataError


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("7", 7),
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 8 ]", 8),
        ("[MED 9 1 4 ]", 4),
        ("[MED 9 1 ]", 5),
        ("[MED 8 1 2 3 ]", 2),  # (2 + 3) / 2 truncated
        ("[SM 9 8 7 ]", 4),  # 24 modulo 10
        ("[MAX 4 [MED 1 9 2 ] 0 ]", 4),
        ("[SM [MIN 5 6 ] [MAX 5 6 ] [SM 9 9 ] ]", 9),  # 5 + 6 + 8 = 19
        ("( ( ( ( [MAX 3 ) 4 ) 7 ) ] )", 7),  # as released
    ],
)
def test_value(source, value):
    assert evaluate(encode(source)) == value


def test_nesting_has_no_limit():
    depth = 100_003  # far beyond what Python recurses
    assert evaluate(encode("[MAX 1 " * depth + "[SM 7 5 ]" + " ]" * depth)) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "0 expressions, not one"),
        ("7 7", "2 expressions, not one"),
        ("[MAX 1 [MIN 2 3 ]", "1 closing brackets missing"),
        ("[MAX 1 2 ] ]", r"token 4 \('\]'\) closes nothing"),
        ("[MAX 1 [SM ] ]", r"token 3 \('\]'\) closes an empty \[SM"),
        ("[MAX 1 10 ]", r"token 2 \('10'\)"),
        ("( [FIRST 1 ) ]", r"token 0 \('\[FIRST'\)"),
        ("<pad>", "token 0"),
        (") 5 (", "an opening parenthesis is missing"),
        ("( ( [MAX 3 4 ] )", "a closing parenthesis is missing"),
        ("( [MAX 1 2 ] ) 3", "2 expressions, not one"),
    ],
)
def test_what_is_no_expression(source, message):
    with pytest.raises(DataError, match=message):
        evaluate(encode(source))


def test_vocabulary_is_fixed():
    # Written out again: a checkpoint trained yesterday relies on every place.
    words = "<pad> [MIN [MAX [MED [SM ] 0 1 2 3 4 5 6 7 8 9"
    assert words.split() == list(VOCABULARY)


def test_encode_drops_parentheses_and_decode_padding():
    ids = encode("( ( ( [SM 3 ) [MIN 0 9 ] ) ] )")
    assert ids.dtype == np.uint8
    assert ids.tolist() == [4, 9, 1, 6, 15, 5, 5]
    assert decode(np.concatenate([ids, [0, 0, 0]])) == "[SM 3 [MIN 0 9 ] ]"
