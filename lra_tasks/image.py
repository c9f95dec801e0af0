"""Image: CIFAR-10 (Krizhevsky 2009) in grey, pixel by pixel.

As in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): the 1,024 intensities of a
picture, row by row, are its tokens; 0 is black, not padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra_tasks import archives
from lra_tasks.archives import Archive
from lra_tasks.base import Task
from lra_tasks.split import DataError, Split, remove_overlap, split_off

SIDE = 32
NUM_PIXELS = SIDE * SIDE
NUM_BATCHES = 6  # five of train, then test
BATCH = r"(?:^|/)(data_batch_[1-5]|test_batch)\.bin$"
FOLDER = "cifar-10-batches-bin"
Pictures = tuple[np.ndarray, np.ndarray]  # uint8 [n, 1024] and labels [n]


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """0.2989 R + 0.5870 G + 0.1140 B, rounded: uint8 `[n, 3, ...]` -> `[n, ...]`.

    In whole numbers, so that every machine rounds the same way.
    """
    red, green, blue = (rgb[:, channel].astype(np.uint32) for channel in range(3))
    return ((2989 * red + 5870 * green + 1140 * blue + 5000) // 10_000).astype(np.uint8)


def read_batches(path: Path, batch_size: int) -> list[Pictures]:
    """Train and test of FOLDER or its archive, of records label, R, G, B."""
    size, found = (batch_size, 1 + 3 * NUM_PIXELS), {}
    with archives.open_members(path, BATCH) as members:
        for match, file in members:
            records = np.frombuffer(file.read(), np.uint8)
            if records.size != size[0] * size[1]:
                wanted = f"{size[0]:,} records of {size[1]:,} bytes"
                raise DataError(f"{path}: {match.string} is not {wanted}")
            records = records.reshape(size)
            pixels = to_grey(records[:, 1:].reshape(-1, 3, NUM_PIXELS))
            found[match[1]] = pixels, records[:, 0]
    if len(found) != NUM_BATCHES:
        raise DataError(f"{path} has only {', '.join(sorted(found))}: get it again")
    *train, test = (found[name] for name in sorted(found))
    pixels, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return [(pixels, labels), test]


@dataclass(frozen=True, kw_only=True)
class Image(Task):
    """The benchmark by default.

    The binary archive, or the folder it unpacks to, is looked for in data_dir, or in
    `source_dir` if given; then TFDS's `cifar10`; else it is downloaded. A tenth of each
    class of the training pictures, drawn with `seed`, is the validation split.
    """

    name: ClassVar[str] = "image"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "CIFAR-10 in grey, pixel by pixel."
    homepage: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    citation: ClassVar[str] = "Krizhevsky, Learning Multiple Layers of Features, 2009"
    vocab_size: ClassVar[int] = 256
    num_classes: ClassVar[int] = 10
    label_names: ClassVar[Sequence[str]] = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
    archive: ClassVar[Archive] = Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        md5="c32a1d4ab5d03f1284b67883e8d87530",
    )
    batch_size: ClassVar[int] = 10_000
    max_length: int = NUM_PIXELS
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.max_length == NUM_PIXELS,
            f"max_length must be {NUM_PIXELS}, all pixels; it is {self.max_length}",
        )

    def source_files(self) -> list[Path]:
        path = archives.find([FOLDER, self.archive.name], Path(str(self.source_dir)))
        return [] if path is None else [path, *path.glob("*.bin")]

    def make_splits(self, data_dir: Path) -> Mapping[str, Split]:
        train, test = (Split.of_pictures(*each) for each in self._read(data_dir))
        train, validation = split_off(train, self.seed)
        splits = {"train": train, "validation": validation, "test": test}
        return remove_overlap(self.name, splits)

    def _read(self, data_dir: Path) -> list[Pictures]:
        """Pictures and labels of train and of test, in the archive's order."""
        if not archives.find([FOLDER, self.archive.name], self.place(data_dir)):
            read = archives.read_tfds
            both = [read("cifar10", x, self.source_dir) for x in ("train", "test")]
            if both[0] and both[1]:
                return [_of_tfds(rows) for rows in both if rows]
        by_hand = self.source_dir is not None
        path = archives.obtain(self.archive, FOLDER, self.place(data_dir), by_hand)
        return read_batches(path, self.batch_size)

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(SIDE, SIDE)


def _of_tfds(rows: list[Any]) -> Pictures:
    rows = sorted(rows, key=lambda row: row["id"])  # "train_00000", …
    rgb = np.stack([row["image"] for row in rows]).transpose(0, 3, 1, 2)
    return to_grey(rgb), np.array([row["label"] for row in rows])
