"""Documents as bytes: a byte's token is its value plus one, 0 is padding."""

from collections.abc import Iterable, Sequence

import numpy as np

from lra_tasks.split import pad

VOCAB_SIZE = 257


def get_dtype(documents: Iterable[bytes]) -> type[np.unsignedinteger]:
    """uint8, half the memory, unless a byte 255 occurs, which UTF-8 never has."""
    has_255 = any(b"\xff" in document for document in documents)
    return np.uint16 if has_255 else np.uint8


def encode(
    documents: Sequence[bytes], max_length: int, dtype: type[np.unsignedinteger]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens `[n, max_length]` of the first bytes of documents, and lengths `[n]`."""
    rows = [np.frombuffer(document[:max_length], np.uint8) for document in documents]
    tokens, lengths = pad(rows, max_length, dtype)
    tokens += np.arange(max_length) < lengths[:, None]
    return tokens, lengths


def decode(tokens: np.ndarray) -> str:
    """The text of tokens `[n]`; what is not UTF-8 shows as \\xff."""
    values = (tokens[tokens > 0] - 1).astype(np.uint8)
    return values.tobytes().decode("utf-8", "backslashreplace")
