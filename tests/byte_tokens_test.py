"""A byte is its value plus one; nothing is lost, and 0 is free for padding."""

import numpy as np
import pytest

from lra_tasks.byte_tokens import VOCAB_SIZE, decode, encode, get_dtype

EVERY_BYTE = bytes(range(256))


def test_every_byte_has_its_own_token():
    dtype = get_dtype([b"a", EVERY_BYTE])
    tokens, lengths = encode([EVERY_BYTE], 257, dtype)
    assert tokens.dtype == np.uint16
    assert lengths.tolist() == [256]
    assert tokens[0].tolist() == [*range(1, 257), 0]
    assert tokens.max() < VOCAB_SIZE


def test_without_byte_255_one_byte_a_token_suffices():
    document = bytes(range(255))
    dtype = get_dtype([document, "ÿ€".encode()])
    tokens, _ = encode([document], 255, dtype)
    assert tokens.dtype == np.uint8
    assert tokens[0].tolist() == [*range(1, 256)]


def test_documents_are_cut_and_padded():
    tokens, lengths = encode([b"abc", b"abcdefg", b""], 5, np.uint8)
    assert lengths.tolist() == [3, 5, 0]
    assert tokens.tolist() == [[98, 99, 100, 0, 0], [98, 99, 100, 101, 102], [0] * 5]


@pytest.mark.parametrize("text", ["naïve<br />", "日本", ""])
def test_decode_undoes_encode(text):
    tokens, _ = encode([text.encode()], 31, np.uint8)
    assert decode(tokens[0]) == text


def test_what_is_not_utf_8_is_kept_and_shown():
    tokens, _ = encode([b"a\xff\x80"], 5, np.uint16)
    assert decode(tokens[0]) == "a\\xff\\x80"
