"""Sub-words: texts as rows `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]` of token ids.

A vocabulary is "byte", whose tokens are the bytes behind five special ones, or a
`tokenizer.json` of the `tokenizers` library with the same five, as `train` writes.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from etils import epath
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lra_tasks.errors import DataError
from lra_tasks.split import pad

TOKENIZER_FILE = "tokenizer.json"  # beside a dataset, and in a workdir
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_VOCAB_SIZE = 2**16  # tokens are uint16


def train(texts: Iterable[str], vocab_size: int, path: Path) -> None:
    """Learns byte-level BPE (Radford et al. 2019) and writes it to a tokenizer.json.

    The same texts give the same file; any text can be encoded, none is [UNK].
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
    """Token ids, 0 to vocab_size - 1, of texts and back; those of SPECIAL are no text.

    Its digest pins it in a dataset's options.
    """

    def __init__(self, name: str) -> None:
        """Opens "byte" or the path of a tokenizer.json; DataError if it is neither."""
        self._tokenizer: Tokenizer | None = None
        self.special, self.digest = tuple(range(len(SPECIAL))), name
        self.vocab_size = len(SPECIAL) + 256
        if name != "byte":
            self._open(epath.Path(name).expanduser())
        _, _, self.cls, self.sep, self.mask = self.special

    def _open(self, path: epath.Path) -> None:
        if not path.is_file():
            raise DataError(f"the tokenizer is byte or a tokenizer.json, not {path}")
        content = path.read_bytes()
        try:
            self._tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises no narrower one
            reason = str(error).partition("\n")[0]
            raise DataError(f"{path} is not a tokenizer.json ({reason})") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
        known = self._tokenizer.get_vocab()
        names = [x if x in known else f"<{x[1:-1].lower()}>" for x in SPECIAL]
        self.special = tuple(known[x] for x in names if x in known)  # or as <pad>
        if len(self.special) < len(SPECIAL) or self.special[0] != 0:
            raise DataError(f"{path} lacks {', '.join(SPECIAL)}, the first as id 0")
        self.vocab_size = 1 + max(known.values())
        self.digest = hashlib.sha256(content).hexdigest()[:16]
        if self.vocab_size > MAX_VOCAB_SIZE:
            raise DataError(f"{path} has more than {MAX_VOCAB_SIZE:,} tokens")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text alone, no special ones among them."""
        if self._tokenizer is None:
            spaced = (f" {text}".encode() for text in texts)  # as before sub-words
            return [[len(SPECIAL) + byte for byte in text] for text in spaced]
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids `[n]`, special ones as `[CLS]`."""
        parts = []
        for special, run in itertools.groupby(ids.tolist(), self.special.__contains__):
            if special:
                parts += [SPECIAL[self.special.index(token)] for token in run]
            elif self._tokenizer is None:
                text = bytes(token - len(SPECIAL) for token in run)
                parts.append(text.decode("utf-8", "backslashreplace").strip())
            else:
                parts.append(self._tokenizer.decode(list(run)).strip())
        return " ".join(parts)

    def row(self, first: list[int], *second: list[int], max_length: int) -> list[int]:
        """[CLS] first [SEP], or [CLS] first [SEP] second [SEP]; the longer is cut."""
        room = max_length - 2 - len(second)
        if not second:
            return [self.cls, *first[:room], self.sep]
        first = first[: max(room - len(second[0]), (room + 1) // 2)]
        return [self.cls, *first, self.sep, *second[0][: room - len(first)], self.sep]

    def rows(
        self, texts: Sequence[Sequence[str]], max_length: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows uint16 `[n, max_length]` of n texts or pairs, and lengths `[n]`."""
        rows = []
        for start in range(0, len(texts), 1024):
            columns = zip(*texts[start : start + 1024], strict=True)
            for ids in zip(*map(self.encode, columns), strict=True):
                rows.append(np.array(self.row(*ids, max_length=max_length), np.uint16))
        return pad(rows, max_length, np.uint16)


open_vocabulary = functools.lru_cache(maxsize=4)(Vocabulary)  # each is read once
