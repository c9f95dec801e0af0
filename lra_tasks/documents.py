"""Documents of plain text: read, given to a split, and divided into examples."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lra_tasks.errors import DataError
from lra_tasks.split import SPLITS

# Of all documents those below the first share are train, above the second test.
SHARES = (0.8, 0.9)
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s)|\Z)", re.DOTALL)
Tokens = list[int]


def read_documents(path: Path, blank_lines: bool) -> Iterator[str]:
    """Yields the documents of a file.

    Args:
      path: the file.
      blank_lines: whether blank lines separate documents; otherwise the file is one.

    Raises:
      DataError: if the file is not UTF-8.
    """

    def is_between(line: str) -> bool:
        return blank_lines and not line.strip()

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for _, lines in itertools.groupby(file, key=is_between):
                text = "".join(lines).strip()
                if text:
                    yield text
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None


def split_of(document: str, seed: int) -> str:
    """Returns train, validation or test, by the document's content.

    Equal documents are in the same split.
    """
    digest = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(8))
    share = int.from_bytes(digest.digest()) / 2**64
    return SPLITS[np.searchsorted(SHARES, share, side="right")]


def make_examples(
    sentences: list[Tokens], max_length: int, rng: np.random.Generator
) -> Iterator[tuple[Tokens, Tokens, int]]:
    """Makes the rows of one document: two parts that follow one another, or swapped.

    Sentences are packed into rows, and a row is cut at a random end into two parts.
    A sentence that does not fit any more begins the next row, so the first sentence of
    a row is longer than average. Rows are filled from a random end of the document;
    otherwise this would give the order away.

    Args:
      sentences: the tokens of each sentence.
      max_length: the length of a row with [CLS] and two [SEP].
      rng: draws the end, the cuts and the order.

    Yields:
      Both parts of a row, and its label: 1 if they are in order.
    """
    sentences = [sentence for sentence in sentences if sentence]
    if len(sentences) < 2:
        return
    is_backwards = not rng.integers(2)
    num_tokens = max_length - 3
    if is_backwards:
        sentences = _mirror(sentences)

    pieces = [
        piece
        for sentence in sentences
        for piece in split_long(sentence, num_tokens // 2)
    ]
    for row in pack(pieces, num_tokens):
        if len(row) < 2:
            continue
        if is_backwards:
            row = _mirror(row)
        cut = rng.integers(1, len(row))
        first = list(itertools.chain.from_iterable(row[:cut]))
        second = list(itertools.chain.from_iterable(row[cut:]))
        if rng.integers(2):
            yield first, second, 1
        else:
            yield second, first, 0


def _mirror(pieces: list[Tokens]) -> list[Tokens]:
    """Reverses the order of the pieces, and of the tokens within each."""
    return [piece[::-1] for piece in reversed(pieces)]


def split_long(sentence: Tokens, max_tokens: int) -> list[Tokens]:
    """Divides a sentence evenly into as few pieces of `max_tokens` as possible."""
    num_pieces = -(-len(sentence) // max_tokens)
    ends = [len(sentence) * i // num_pieces for i in range(num_pieces + 1)]
    return [sentence[start:end] for start, end in itertools.pairwise(ends)]


def pack(pieces: Iterable[Tokens], num_tokens: int) -> Iterator[list[Tokens]]:
    """Groups consecutive pieces, as many as have `num_tokens` tokens together."""
    row: list[Tokens] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > num_tokens:
            yield row
            row = []
            size = 0
        row.append(piece)
        size += len(piece)
    yield row
