"""Documents as bytes: a byte's token is its value plus one, 0 is padding."""

from collections.abc import Iterable, Sequence

import numpy as np

VOCAB_SIZE = 257


def get_dtype(documents: Iterable[bytes]) -> type[np.unsignedinteger]:
    """uint8, half the memory, unless a byte 255 occurs: its token is 256.

    UTF-8 has no such byte.
    """
    has_255 = any(b"\xff" in document for document in documents)
    return np.uint16 if has_255 else np.uint8


def encode(
    documents: Sequence[bytes], max_length: int, dtype: type[np.unsignedinteger]
) -> tuple[np.ndarray, np.ndarray]:
    """The first `max_length` bytes of each document as tokens.

    Returns:
      Tokens `[num_documents, max_length]` of the dtype and their lengths, int32
      `[num_documents]`.
    """
    tokens = np.zeros((len(documents), max_length), dtype)
    lengths = np.zeros(len(documents), np.int32)
    for row, document in enumerate(documents):
        values = np.frombuffer(document[:max_length], np.uint8)
        lengths[row] = len(values)
        np.add(values, 1, out=tokens[row, : len(values)], dtype=dtype)
    return tokens, lengths


def decode(tokens: np.ndarray) -> str:
    """The text of tokens `[n]`; what is not UTF-8 shows as \\xff."""
    values = (tokens[tokens > 0] - 1).astype(np.uint8)
    return values.tobytes().decode("utf-8", "backslashreplace")
