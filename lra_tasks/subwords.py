"""Sub-words: texts as rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` of token ids.

A vocabulary is "byte", whose tokens are the bytes behind five special ones, or a
`tokenizer.json` of the `tokenizers` library with the same five, as `train` writes. They
may be called <pad>, <unk>, <cls> or <s>, <sep> or </s>, and <mask>.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lra_tasks.errors import DataError
from lra_tasks.split import pad

# The file's name beside a dataset, and in a workdir.
TOKENIZER_FILE = "tokenizer.json"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Their names in other files. In RoBERTa's the padding has not the id 0; behind the end
# of a row stand zeros all the same, which nothing reads.
OTHER_NAMES = {
    "[PAD]": ("<pad>",),
    "[UNK]": ("<unk>",),
    "[CLS]": ("<cls>", "<s>"),
    "[SEP]": ("<sep>", "</s>"),
    "[MASK]": ("<mask>",),
}
BYTE_VOCAB_SIZE = len(SPECIAL) + 256
MAX_VOCAB_SIZE = 2**16  # Tokens are uint16.
TEXTS_AT_A_TIME = 1024


def train(texts: Iterable[str], vocab_size: int, path: Path) -> None:
    """Learns byte-level BPE (Radford et al. 2019) and writes it to a tokenizer.json.

    The same texts give the same file; any text can be encoded, none is [UNK].

    Args:
      texts: what to learn from.
      vocab_size: the number of tokens; few texts may have fewer sub-words.
      path: the file.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    path.write_text(tokenizer.to_str(), encoding="utf-8")


class Vocabulary:
    """Token ids, 0 to vocab_size - 1, of texts and back.

    Attributes:
      vocab_size: the number of ids.
      special: the ids of SPECIAL, in that order; none of them is text.
      cls, sep, mask: three of them.
      digest: "byte" or a hash of the file, which pins it in a dataset's options.
    """

    def __init__(self, name: str) -> None:
        """Opens a vocabulary.

        Args:
          name: "byte" or the path of a tokenizer.json.

        Raises:
          DataError: if it is neither.
        """
        self._tokenizer: Tokenizer | None = None
        if name == "byte":
            self.special = tuple(range(len(SPECIAL)))
            self.vocab_size = BYTE_VOCAB_SIZE
            self.digest = name
        else:
            self._open(epath.Path(name).expanduser())
        _, _, self.cls, self.sep, self.mask = self.special

    def _open(self, path: epath.Path) -> None:
        if not path.is_file():
            raise DataError(f"the tokenizer is byte or a tokenizer.json, not {path}")
        content = path.read_bytes()
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # The library raises no narrower one.
            reason = str(error).partition("\n")[0]
            raise DataError(f"{path} is not a tokenizer.json ({reason})") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text.

        ids = tokenizer.get_vocab()
        special = [_find_special(name, ids) for name in SPECIAL]
        if None in special:
            raise DataError(
                f"{path} must have the tokens {', '.join(SPECIAL)}: take the "
                "tokenizer.json of a pre-training run"
            )
        vocab_size = 1 + max(ids.values())
        if vocab_size > MAX_VOCAB_SIZE:
            raise DataError(f"{path} has more than {MAX_VOCAB_SIZE:,} tokens")

        self._tokenizer = tokenizer
        self.special = tuple(token for token in special if token is not None)
        self.vocab_size = vocab_size
        self.digest = hashlib.sha256(content).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text alone, no special ones among them."""
        if self._tokenizer is None:
            # A text begins with a space, as it does for sub-words.
            contents = [f" {text}".encode() for text in texts]
            return [[len(SPECIAL) + byte for byte in content] for content in contents]
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: np.ndarray) -> str:
        """Returns the text of ids `[n]`, special ones as `[CLS]`."""
        parts = []
        is_special = self.special.__contains__
        for special, group in itertools.groupby(ids.tolist(), is_special):
            if special:
                parts += [SPECIAL[self.special.index(token)] for token in group]
            elif self._tokenizer is None:
                content = bytes(token - len(SPECIAL) for token in group)
                parts.append(content.decode("utf-8", "backslashreplace").strip())
            else:
                parts.append(self._tokenizer.decode(list(group)).strip())
        return " ".join(parts)

    def row(
        self, first: list[int], second: list[int] | None = None, *, max_length: int
    ) -> list[int]:
        """Makes the row [CLS] first [SEP], or [CLS] first [SEP] second [SEP].

        If two texts are too long together, the longer one is cut; if each is longer
        than half of the free places, both are cut.

        Args:
          first: the ids of a text.
          second: those of another; None = there is only one.
          max_length: the largest length of the row.
        """
        if second is None:
            return [self.cls, *first[: max_length - 2], self.sep]
        num_free = max_length - 3  # beside [CLS] and both [SEP]
        half = (num_free + 1) // 2
        left_by_second = num_free - len(second)
        # The first text has what the second leaves it, and half in any case.
        first = first[: max(half, left_by_second)]
        second = second[: num_free - len(first)]
        return [self.cls, *first, self.sep, *second, self.sep]

    def rows(
        self, texts: Sequence[Sequence[str]], max_length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Makes the rows of n texts or pairs of texts.

        Args:
          texts: n tuples, all of one text or all of two.
          max_length: the number of columns.

        Returns:
          The rows uint16 `[n, max_length]` and their lengths `[n]`.
        """
        rows = []
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            columns = zip(*texts[start : start + TEXTS_AT_A_TIME], strict=True)
            encoded_columns = [self.encode(column) for column in columns]
            for ids in zip(*encoded_columns, strict=True):
                rows.append(np.array(self.row(*ids, max_length=max_length), np.uint16))
        return pad(rows, max_length, np.uint16)


def to_tuples(texts: Sequence[str | Sequence[str]]) -> list[tuple[str, ...]]:
    """Makes a tuple of one text where there is a text; other sequences stay."""
    return [(text,) if isinstance(text, str) else tuple(text) for text in texts]


def _find_special(name: str, ids: Mapping[str, int]) -> int | None:
    """The id of a special token, under its own name or another one."""
    for known_name in (name, *OTHER_NAMES[name]):
        if known_name in ids:
            return ids[known_name]
    return None


@functools.lru_cache(maxsize=4)
def open_vocabulary(name: str) -> Vocabulary:
    """Opens a vocabulary as `Vocabulary` does, each file once."""
    return Vocabulary(name)
