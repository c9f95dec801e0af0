"""Image: CIFAR-10 (Krizhevsky 2009) in grey, pixel by pixel.

As in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): the 1,024 intensities of a
picture, row by row, are its tokens. 0 is black, which is a token here. The benchmark's
code takes it for padding, and so does a model with `ignore_id=0`, as the configs' are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks import archives
from lra_tasks.archives import Archive
from lra_tasks.errors import DataError
from lra_tasks.split import Split
from lra_tasks.task import Task

NUM_PIXELS = 32 * 32
# The names of the files of each split, as a regular expression.
BATCHES = {"train": "data_batch_[1-5]", "test": "test_batch"}


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """Mixes the colours, 0.2989 R + 0.5870 G + 0.1140 B, rounded.

    The sum is in whole numbers, so that every machine rounds the same way.

    Args:
      rgb: uint8 `[n, 3, ...]`.

    Returns:
      Intensities uint8 `[n, ...]`.
    """
    red, green, blue = np.moveaxis(rgb.astype(np.uint32), 1, 0)
    weighted_sum = 2989 * red + 5870 * green + 1140 * blue
    return ((weighted_sum + 5000) // 10_000).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class Image(Task):
    """By default the benchmark's data: the binary archive, its folder, or TFDS's."""

    name: ClassVar[str] = "image"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "CIFAR-10 in grey, pixel by pixel."
    homepage: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    citation: ClassVar[str] = "Krizhevsky, Learning Multiple Layers of Features, 2009"
    vocab_size: ClassVar[int] = 256
    padded: ClassVar[bool] = False
    zero_is_padding: ClassVar[bool] = False
    num_classes: ClassVar[int] = 10
    label_names: ClassVar[Sequence[str]] = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    archive: ClassVar[Archive] = Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        folders=("cifar-10-batches-bin",),
        md5="c32a1d4ab5d03f1284b67883e8d87530",
        dataset="cifar10",
    )
    files: ClassVar[str] = "*.bin"
    augmentations: ClassVar[tuple[str, ...]] = ("flip_horizontal",)
    batch_size: ClassVar[int] = 10_000
    max_length: int = NUM_PIXELS
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.max_length == NUM_PIXELS,
            f"max_length must be {NUM_PIXELS}, all pixels; it is {self.max_length}",
        )

    def make_splits(self, source: Path) -> dict[str, Split]:
        return {
            split: self._read_tfds(source, split) or self._read(source, split)
            for split in BATCHES
        }

    def _read_tfds(self, source: Path, split: str) -> Split | None:
        """The pictures of TFDS; None if the source is a different one."""
        rows = archives.read_tfds(source, split)
        if rows is None:
            return None
        rows.sort(key=lambda row: row["id"])  # the archive's order
        rgb = np.stack([row["image"] for row in rows]).transpose(0, 3, 1, 2)
        return Split.from_pictures(to_grey(rgb), [row["label"] for row in rows])

    def _read(self, source: Path, split: str) -> Split:
        """The archive's records of a label, R, G and B."""
        pattern = rf"(?:^|/){BATCHES[split]}\.bin$"
        with archives.open_members(source, pattern) as members:
            batches = {match[0]: file.read() for match, file in members}
        content = b"".join(batches[name] for name in sorted(batches))

        num_pictures = self.batch_size * (5 if split == "train" else 1)
        num_bytes = 1 + 3 * NUM_PIXELS
        if len(content) != num_pictures * num_bytes:
            raise DataError(
                f"{source}: {split} has {len(content):,} bytes, not {num_pictures:,} "
                f"pictures of {num_bytes:,}: get it again"
            )
        records = np.frombuffer(content, np.uint8).reshape(num_pictures, num_bytes)
        rgb = records[:, 1:].reshape(-1, 3, NUM_PIXELS)
        return Split.from_pictures(to_grey(rgb), records[:, 0])
