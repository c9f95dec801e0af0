"""Image: CIFAR-10 (Krizhevsky 2009) in grey, pixel by pixel.

As in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): the 1,024 intensities of a
picture, row by row, are its tokens; 0 is black, not padding.
"""

import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks import archives
from lra_tasks.archives import Archive
from lra_tasks.base import Task
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, hold_out, separate

SIDE = 32
NUM_PIXELS = SIDE * SIDE
NUM_CLASSES = 10
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
BATCH = r"(?:^|/)(data_batch_[1-5]|test_batch)(\.bin)?$"
MAX_BATCH_BYTES = 2**26
KEYS = {"batch_label", "labels", "data", "filenames"}  # of a pickled batch
STRINGS = {"BINSTRING", "SHORT_BINSTRING"}
SCALARS = {*STRINGS, "BININT", "BININT1", "BININT2", "NEWTRUE", "NEWFALSE"}


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """0.2989 R + 0.5870 G + 0.1140 B, rounded: uint8 `[n, 3, ...]` -> `[n, ...]`.

    In whole numbers, so that every machine rounds alike.
    """
    red, green, blue = (rgb[:, channel].astype(np.uint32) for channel in range(3))
    return ((2989 * red + 5870 * green + 1140 * blue + 5000) // 10_000).astype(np.uint8)


def parse_binary(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 `[n, 3072]` and labels `[n]` of records label, R, G, B."""
    record = 1 + 3 * NUM_PIXELS
    if len(content) % record:
        raise DataError(f"{len(content):,} bytes are not whole records of {record:,}")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, 1:], records[:, 0]


def parse_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 `[n, 3072]` and labels `[n]` of a dict pickled by Python 2.

    The pickle is not run, only looked through: the scalars behind each key.
    """
    scalars = {key: [] for key in KEYS}
    behind = []
    try:
        for opcode, value, _ in pickletools.genops(content):
            if opcode.name in STRINGS and value in KEYS:
                behind = scalars[str(value)]
            elif opcode.name in SCALARS:
                behind.append(opcode.name == "NEWTRUE" if value is None else value)
        match scalars["data"]:  # as numpy pickles an array: shape, dtype, order, bytes
            case [0, "b", 1, n, 3072, "u1", *_, bool(order), str(data)]:
                flat = np.frombuffer(data.encode("latin-1"), np.uint8)
                pictures = flat.reshape(
                    (n, 3 * NUM_PIXELS), order="F" if order else "C"
                )
                return pictures, np.array(scalars["labels"], np.int64)
    except Exception as error:  # whatever a wrong pickle runs into
        name = type(error).__name__
        raise DataError(f"not a batch in pickle format ({name})") from error
    raise DataError("its data is not a uint8 array [n, 3072]")


def read_batches(
    path: Path, batch_size: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pixels uint8 `[n, 1024]` and labels `[n]` of the five training batches and test.

    From cifar-10-batches-bin/ or cifar-10-batches-py/, or the archive of one.
    """
    found = {}
    with (
        archives.open_members(path, BATCH) as members,
        Progress("image", 6 * batch_size) as bar,
    ):
        for match, file in members:
            where = f"{path}: {match.string}"
            content = archives.read_whole(file, where, MAX_BATCH_BYTES)
            parse = parse_binary if match[2] else parse_pickle
            try:
                rgb, labels = parse(content)
                if not len(rgb) == len(labels) == batch_size:
                    found_here = f"{len(rgb):,} pictures and {len(labels):,} labels"
                    raise DataError(f"{found_here}, not {batch_size:,} of each")
                if set(wrong := np.unique(labels)) - set(range(NUM_CLASSES)):
                    raise DataError(f"its labels {wrong} are not 0 to 9")
            except DataError as error:
                raise DataError(f"{where}: {error}") from None
            found[match[1]] = to_grey(rgb.reshape(-1, 3, NUM_PIXELS)), labels
            bar.update(batch_size)
    for name in (*TRAIN_BATCHES, "test_batch"):
        if name not in found:
            raise DataError(f"{path} has no {name}")
    return found


@dataclass(frozen=True, kw_only=True)
class Image(Task):
    """The benchmark by default.

    An archive, or the folder it unpacks to, is looked for in data_dir, or in
    `source_dir` if given, and downloaded otherwise. A tenth of each class of the
    training pictures, drawn with `seed`, is the validation split.
    """

    name: ClassVar[str] = "image"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 256
    num_classes: ClassVar[int] = NUM_CLASSES
    archives: ClassVar[tuple[Archive, ...]] = (
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            num_bytes=170_052_171,
            md5="c32a1d4ab5d03f1284b67883e8d87530",
        ),
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            num_bytes=170_498_071,
            md5="c58f30108f718f92721af3b95e74349a",
        ),
    )
    batch_size: ClassVar[int] = 10_000
    max_length: int = NUM_PIXELS
    seed: int = 0
    source_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.max_length == NUM_PIXELS,
            f"max_length must be {NUM_PIXELS}, all pixels; it is {self.max_length}",
        )

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        folders = ["cifar-10-batches-bin", "cifar-10-batches-py"]
        path = archives.obtain(self.archives, folders, data_dir, self.source_dir)
        found = read_batches(path, self.batch_size)
        batches = zip(*(found[name] for name in TRAIN_BATCHES), strict=True)
        train = Split.of_pictures(*map(np.concatenate, batches))
        test = Split.of_pictures(*found["test_batch"])
        train, validation = hold_out(train, self.seed)
        splits = {"train": train, "validation": validation, "test": test}
        return separate(self.name, splits)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(SIDE, SIDE)
