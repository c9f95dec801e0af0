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
from lra_tasks.pathfinder_generator import PART_PIXELS, draw
from lra_tasks.pathfinder_paddles import RESOLUTIONS
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, separate

RELEASED_FOLDERS = {  # by difficulty
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
RELEASED_SEED = 42  # of the permutation that cuts the released pictures in splits
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
MAX_PICTURE_BYTES = 2**20
BOMB = PIL.Image.DecompressionBombWarning  # of a size that no picture here has
NO_PNG = (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError, BOMB)


def read_released(folder: Path, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them, text despite its name.

    Returns:
      Pictures uint8 `[n, R, R]` and labels int32 `[n]`, permuted with RELEASED_SEED.
      Empty files, of which the release has one, are left out with a warning.

    Raises:
      DataError: naming the file, for whatever is not as it should be.
    """
    listed = _read_metadata(folder)
    images = np.empty((len(listed), resolution, resolution), np.uint8)
    labels = np.empty(len(listed), np.int32)
    order = np.random.default_rng(RELEASED_SEED).permutation(len(listed))
    place_of = np.argsort(order)  # in memory once, and on disk from front to back
    with Progress("pictures", len(listed)) as bar:
        for place, (path, label) in zip(place_of, listed, strict=True):
            images[place], labels[place] = _read_png(path, resolution), label
            bar.update(1)
    return images, labels


def _read_metadata(folder: Path) -> list[tuple[Path, int]]:
    """The pictures' files and labels, by file of metadata and line; no empty ones."""
    files = [path for path in folder.glob("metadata/*.npy") if path.stem.isdecimal()]
    listed = []
    for file in sorted(files, key=lambda path: int(path.stem)):
        with archives.open_regular(file) as content:
            lines = content.read().decode("ascii", "backslashreplace").splitlines()
        for number, line in enumerate(lines, start=1):
            try:
                path, label = _parse_line(line, folder)
            except DataError as error:
                raise DataError(f"{file}, line {number}: {error}") from None
            if path.stat().st_size:
                listed.append((path, label))
            else:
                print(f"{path} is empty: left out", file=sys.stderr)
    if not listed:
        raise DataError(f"{folder} has no metadata/K.npy with pictures in it")
    return listed


def _parse_line(line: str, folder: Path) -> tuple[Path, int]:
    words = line.split()
    if len(words) < 4:
        raise DataError(f"{len(words)} columns, not 4 or more")
    place, name, _, label = words[:4]
    path = folder / place / name
    if label not in ("0", "1"):
        raise DataError(f"the label {label!r} is not 0 or 1")
    if ".." in path.parts or not path.is_relative_to(folder):
        raise DataError(f"{place}/{name} leads out of the folder")
    if not path.is_file():
        raise DataError(f"there is no {path}")
    return path, int(label)


def _read_png(path: Path, resolution: int) -> np.ndarray:
    with path.open("rb") as file:
        content = archives.read_whole(file, str(path), MAX_PICTURE_BYTES)
    try:
        with (
            warnings.catch_warnings(action="error", category=BOMB),
            PIL.Image.open(io.BytesIO(content), formats=["PNG"]) as picture,
        ):
            size = picture.size
            if size == (resolution, resolution):
                return np.asarray(picture.convert("L"))
    except NO_PNG as error:
        raise DataError(f"{path} is no whole PNG picture ({error})") from error
    raise DataError(f"{path} is {size[0]}x{size[1]}, not {resolution}x{resolution}")


def _read_part(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Images and labels that a stopped preparation left, or None."""
    if not path.is_file():
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
    version: ClassVar[str] = "1.1.0"
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
        side, pixels = self.resolution, self.resolution**2
        self.require(
            side in RESOLUTIONS,
            f"resolution must be one of {RESOLUTIONS}, not {side}",
        )
        self.require(
            self.max_length == pixels,
            f"max_length must be {pixels:,}, all pixels of resolution {side}; it is "
            f"{self.max_length:,}",
        )
        self.require(
            self.difficulty in RELEASED_FOLDERS,
            f"difficulty must be one of {', '.join(RELEASED_FOLDERS)}, not "
            f"{self.difficulty!r}",
        )
        self.require(self.num_examples >= 10, "num_examples must be at least 10")
        self.require(self.num_workers >= 1, "num_workers must be at least 1")

    def pinned_options(self) -> dict[str, Any]:
        idle = {"num_workers"}
        if self.source_dir:
            idle |= {"num_examples", "seed"}
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
            images, labels = self._draw(self._parts(data_dir))
        tokens = images.reshape(len(images), self.max_length)
        lengths = np.full(len(images), self.max_length, np.int32)
        ends = np.cumsum([round(share * len(images)) for share in SHARES.values()])
        cut = (np.split(array, ends[:-1]) for array in (tokens, lengths, labels))
        splits = map(Split, *cut)
        return separate(self.name, dict(zip(SHARES, splits, strict=True)))

    def _find_released(self, source_dir: Path) -> Path:
        name = RELEASED_FOLDERS[self.difficulty]
        below = f"pathfinder{self.resolution}/{name}"
        above = ("lra_release/lra_release/", "lra_release/", "")
        names = [*(f"{place}{below}" for place in above), name]
        if folder := archives.find_folder(source_dir, names):
            return folder
        raise DataError(
            f"{source_dir} has no {below}: it is in {archives.LRA_RELEASE}, to be "
            "unpacked there"
        )

    def _parts(self, data_dir: PathLike | None) -> Path:
        """The folder of pictures drawn so far, beside the dataset they are for."""
        return self.folder(data_dir).with_name(f"parts-{self.version}")

    def _draw(self, folder: Path) -> tuple[np.ndarray, np.ndarray]:
        folder.mkdir(parents=True, exist_ok=True)
        side, size = self.resolution, self.part_pixels // self.resolution**2
        images = np.empty((self.num_examples, side, side), np.uint8)
        labels = np.empty(self.num_examples, np.int32)
        everyone = np.arange(self.num_examples)
        parts = np.split(everyone, everyone[size::size])
        paths = [folder / f"{part[0]}-{part[-1]}.npz" for part in parts]
        with Progress(self.name, self.num_examples) as bar:
            missing = {}
            for part, path in zip(parts, paths, strict=True):
                if kept := _read_part(path):
                    images[part], labels[part] = kept
                    bar.update(len(part))
                else:
                    missing[path] = part
            options = {"resolution": side, "difficulty": self.difficulty}
            todo = list(missing.values())
            with contextlib.closing(
                draw(todo, self.seed, self.num_workers, **options)
            ) as drawn:
                for (path, part), pictures in zip(missing.items(), drawn, strict=True):
                    _write_part(path, *pictures)
                    images[part], labels[part] = pictures
                    bar.update(len(part))
        return images, labels

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(self.resolution, self.resolution)


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
