"""Pathfinder: do the two markers sit on the ends of one contour? Pixel by pixel.

Linsley et al. 2018 (arXiv:1805.08315) in the sizes of Long Range Arena (Tay et al.
2021, arXiv:2011.04006). The pictures are drawn here; the released folders are read when
`source_dir` names them. Path-X is the same at 128 × 128.
"""

import contextlib
import io
import os
import shutil
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image

from lra_tasks import archives
from lra_tasks.archives import PathLike
from lra_tasks.base import Task
from lra_tasks.partition import separate
from lra_tasks.pathfinder_generator import PART_PIXELS, draw, generate
from lra_tasks.pathfinder_paddles import get_settings
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split

__all__ = ["PathX", "Pathfinder", "generate", "read_released"]

RESOLUTIONS = (32, 64, 128, 256)
RELEASED_FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
RELEASED_SEED = 42  # of the permutation that cuts the released pictures in splits
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
MAX_PICTURE_BYTES = 2**20
NO_PNG = (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError)


def read_released(
    folder: Path, resolution: int, seed: int = RELEASED_SEED
) -> tuple[np.ndarray, np.ndarray]:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them, text despite its name.

    Returns:
      Pictures uint8 `[n, R, R]` and labels int32 `[n]`, permuted with the seed. Empty
      files, of which the release has one, are left out with a warning.

    Raises:
      DataError: naming the file, for whatever is not as it should be.
    """
    listed = _read_metadata(folder)
    images = np.empty((len(listed), resolution, resolution), np.uint8)
    labels = np.empty(len(listed), np.int32)
    order = np.random.default_rng(seed).permutation(len(listed))
    place_of = np.argsort(order)  # in memory once, and on disk from front to back
    with Progress("pictures", len(listed)) as bar:
        for place, (path, label) in zip(place_of, listed, strict=True):
            with path.open("rb") as file:
                content = archives.read_whole(file, str(path), MAX_PICTURE_BYTES)
            images[place], labels[place] = _parse_png(content, path, resolution), label
            bar.update(1)
    return images, labels


def _read_metadata(folder: Path) -> list[tuple[Path, int]]:
    """The pictures' files and labels, by file of metadata and line; no empty ones."""
    files = [path for path in folder.glob("metadata/*.npy") if path.stem.isdecimal()]
    listed = []
    for file in sorted(files, key=lambda path: int(path.stem)):
        lines = file.read_bytes().decode("ascii", "backslashreplace").splitlines()
        for number, line in enumerate(lines, start=1):
            words = line.split()
            where = f"{file}, line {number}"
            if len(words) < 4:
                raise DataError(f"{where}: {len(words)} columns, not 4 or more")
            place, name, _, label = words[:4]
            path = folder / place / name
            if label not in ("0", "1"):
                raise DataError(f"{where}: the label {label!r} is not 0 or 1")
            if ".." in path.parts or not path.is_relative_to(folder):
                raise DataError(f"{where}: {place}/{name} leads out of the folder")
            if not path.is_file():
                raise DataError(f"{where}: there is no {path}")
            if not path.stat().st_size:
                print(f"{path} is empty: left out", file=sys.stderr)
                continue
            listed.append((path, int(label)))
    if not listed:
        raise DataError(f"{folder} has no metadata/K.npy with pictures in it")
    return listed


def _parse_png(content: bytes, path: Path, resolution: int) -> np.ndarray:
    bomb = PIL.Image.DecompressionBombWarning  # of a size that no picture here has
    try:
        with (
            warnings.catch_warnings(action="error", category=bomb),
            PIL.Image.open(io.BytesIO(content), formats=["PNG"]) as picture,
        ):
            size = picture.size
            if size == (resolution, resolution):
                return np.asarray(picture.convert("L"))
    except (*NO_PNG, bomb) as error:
        raise DataError(f"{path} is no whole PNG picture ({error})") from error
    raise DataError(f"{path} is {size[0]}x{size[1]}, not {resolution}x{resolution}")


def _part_path(folder: Path, indices: np.ndarray) -> Path:
    return folder / f"{indices[0]}-{indices[-1]}.npz"


def _read_part(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Images and labels that a stopped preparation left, or None."""
    if not path.exists():
        return None
    content = path.read_bytes()
    try:
        with np.load(io.BytesIO(content)) as kept:
            return kept["images"], kept["labels"]
    except Exception:  # whatever zipfile, zlib and numpy raise
        print(f"{path} is damaged: drawn again", file=sys.stderr)
        return None


def _write_part(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as file:
            np.savez_compressed(file, images=images, labels=labels)
    except OSError as error:  # as the disk says it, but where
        raise OSError(error.errno, error.strerror, str(unfinished)) from error
    os.replace(unfinished, path)


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    """The benchmark by default: 200,000 pictures, drawn by `num_workers` processes.

    Pictures are kept in parts as they come, so that a preparation that was stopped
    goes on where it was. With `source_dir`, the release's `pathfinder32`, `…64`, … or
    a folder above or below, its pictures are read instead, all of them, and
    `num_examples`, `seed` and `num_workers` do not count.
    """

    name: ClassVar[str] = "pathfinder"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 256
    num_classes: ClassVar[int] = 2
    part_pixels: ClassVar[int] = PART_PIXELS
    resolution: int = 32
    max_length: int = 1024
    difficulty: str = "hard"
    num_examples: int = 200_000
    seed: int = 0
    num_workers: int = 1
    source_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.resolution in RESOLUTIONS,
            f"resolution must be one of {RESOLUTIONS}, not {self.resolution}",
        )
        self.require(
            self.max_length == self.resolution**2,
            f"max_length must be {self.resolution**2:,}, all pixels of resolution "
            f"{self.resolution}; it is {self.max_length:,}",
        )
        self.require(
            self.difficulty in RELEASED_FOLDERS,
            f"difficulty must be one of {', '.join(RELEASED_FOLDERS)}, not "
            f"{self.difficulty!r}",
        )
        self.require(self.num_examples >= 10, "num_examples must be at least 10")
        self.require(
            0 <= self.seed < 2**63, f"seed must be 0 to 2⁶³-1, not {self.seed}"
        )
        self.require(self.num_workers >= 1, "num_workers must be at least 1")

    def pinned_options(self) -> dict[str, Any]:
        idle = {"num_workers"} | (
            {"num_examples", "seed"} if self.source_dir else set()
        )
        return {key: v for key, v in asdict(self).items() if key not in idle}

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        loaded = super().load(split, data_dir)
        shutil.rmtree(self._parts(data_dir), ignore_errors=True)  # no longer needed
        return loaded

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        if self.source_dir is not None:
            folder = self._find_released(Path(self.source_dir))
            images, labels = read_released(folder, self.resolution)
        else:  # picture i is independent of the others: the order is as good as any
            images, labels = self._generate(self._parts(data_dir))
        tokens = images.reshape(len(images), self.max_length)
        lengths = np.full(len(images), self.max_length, np.int32)
        ends = np.cumsum([round(share * len(images)) for share in SHARES.values()])
        parts = zip(
            *(np.split(array, ends[:-1]) for array in (tokens, lengths, labels)),
            strict=True,
        )
        splits = {name: Split(*part) for name, part in zip(SHARES, parts, strict=True)}
        return separate(self.name, splits)

    def _find_released(self, source_dir: Path) -> Path:
        name = RELEASED_FOLDERS[self.difficulty]
        below = f"pathfinder{self.resolution}/{name}"
        names = [
            f"lra_release/lra_release/{below}",
            f"lra_release/{below}",
            below,
            name,
        ]
        if folder := archives.find_folder(source_dir, names):
            return folder
        raise DataError(
            f"{source_dir} has no {below}: it is in {archives.LRA_RELEASE}, to be "
            "unpacked there"
        )

    def _parts(self, data_dir: PathLike | None) -> Path:
        """The folder of pictures drawn so far, beside the dataset they are for."""
        return self.recipe(data_dir).folder(data_dir).with_name(f"parts-{self.version}")

    def _generate(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        folder.mkdir(parents=True, exist_ok=True)
        images = np.empty(
            (self.num_examples, self.resolution, self.resolution), np.uint8
        )
        labels = np.empty(self.num_examples, np.int32)
        size = self.part_pixels // self.resolution**2
        with Progress(self.name, self.num_examples) as bar:
            missing = []
            for start in range(0, self.num_examples, size):
                indices = np.arange(start, min(start + size, self.num_examples))
                if kept := _read_part(_part_path(folder, indices)):
                    images[indices], labels[indices] = kept
                    bar.update(len(indices))
                else:
                    missing.append(indices)
            settings = get_settings(self.resolution, self.difficulty)
            with contextlib.closing(
                draw(settings, self.seed, missing, self.num_workers)
            ) as drawn:
                for indices, part in zip(missing, drawn, strict=True):
                    _write_part(_part_path(folder, indices), *part)
                    images[indices], labels[indices] = part
                    bar.update(len(indices))
        return images, labels

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(self.resolution, self.resolution)


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
