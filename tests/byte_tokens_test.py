"""A byte is its value plus one; nothing is lost, and 0 is free for padding."""

import numpy as np

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
    dtype = get_dtype([EVERY_BYTE[:255], "ÿ€".encode()])
    tokens, _ = encode([EVERY_BYTE[:255]], 255, dtype)
    assert tokens.dtype == np.uint8
    assert tokens[0].tolist() == [*range(1, 256)]


def test_documents_are_cut_and_padded_and_come_back():
    tokens, lengths = encode(
        [b"abc", "日本x".encode(), b"", b"a\xff\x80"], 6, np.uint16
    )
    assert lengths.tolist() == [3, 6, 0, 3]
    assert tokens[0].tolist() == [98, 99, 100, 0, 0, 0]
    assert [decode(row) for row in tokens] == ["abc", "日本", "", "a\\xff\\x80"]
