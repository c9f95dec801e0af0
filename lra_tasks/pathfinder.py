"""Pathfinder: are the two markers on the ends of one contour? Pixel by pixel.

Linsley et al. 2018 (arXiv:1805.08315) in the sizes of Long Range Arena (Tay et al.
2021, arXiv:2011.04006). The pictures are drawn here; the released folders are read when
`source_dir` names them. Path-X is the same at 128 × 128.
"""

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image

from lra_tasks import archives
from lra_tasks.base import SPLITS, Task
from lra_tasks.pathfinder_generator import PART_PIXELS, draw
from lra_tasks.pathfinder_paddles import RESOLUTIONS
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, separate
from lra_tasks.storage import PathLike

RELEASED_FOLDERS = {  # by difficulty
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
RELEASED_SEED = 42  # of the permutation that cuts the released pictures in splits
MAX_PICTURE_BYTES = 2**20


def read_released(folder: Path, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them, text despite its name.

    Returns:
      Pictures uint8 `[n, R, R]` and labels int32 `[n]`, permuted with RELEASED_SEED.
      Empty files, of which the release has one, are left out with a warning.
    """
    listed = list(_read_metadata(folder))
    if not listed:
        raise DataError(f"{folder} has no metadata/K.npy with pictures in it")
    images = np.empty((len(listed), resolution, resolution), np.uint8)
    labels = np.empty(len(listed), np.int32)
    order = np.random.default_rng(RELEASED_SEED).permutation(len(listed))
    place_of = np.argsort(order)  # in memory once, and on disk from front to back
    with Progress("pictures", len(listed)) as bar:
        for place, (path, label) in zip(place_of, listed, strict=True):
            images[place], labels[place] = _read_png(path, resolution), label
            bar.update(1)
    return images, labels


def _read_metadata(folder: Path) -> Iterator[tuple[Path, int]]:
    """The pictures' files and labels, by file of metadata and line; no empty ones."""
    files = [path for path in folder.glob("metadata/*.npy") if path.stem.isdecimal()]
    for file in sorted(files, key=lambda path: int(path.stem)):
        with archives.open_regular(file) as content:
            lines = content.read().decode("ascii", "backslashreplace").splitlines()
        for number, line in enumerate(lines, start=1):
            words = line.split()
            path = folder.joinpath(*words[:2])
            if len(words) < 4 or words[3] not in ("0", "1") or ".." in path.parts:
                expected = "imgs/K sample_I.png I LABEL …, the label 0 or 1"
                raise DataError(f"{file}, line {number}: {line[:60]!r}, not {expected}")
            if not (path.is_file() and path.is_relative_to(folder)):
                raise DataError(f"{file}, line {number}: there is no {path} in there")
            if path.stat().st_size:
                yield path, int(words[3])
            else:
                print(f"{path} is empty: left out", file=sys.stderr)


def _read_png(path: Path, resolution: int) -> np.ndarray:
    with path.open("rb") as file:
        content = archives.read_whole(file, str(path), MAX_PICTURE_BYTES)
    try:
        with PIL.Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.size == (resolution, resolution):  # else it is not decoded
                return np.asarray(picture.convert("L"))
            wrong = "{}x{}, not {}x{}".format(*picture.size, resolution, resolution)
    except Exception as error:  # whatever a wrong picture runs into
        raise DataError(f"{path} is not a whole PNG picture ({error})") from error
    raise DataError(f"{path} is {wrong}")


def _read_part(path: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Images and labels that a stopped preparation left, or None."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file, np.load(file) as kept:
            return kept["images"], kept["labels"]
    except Exception:  # whatever zipfile, zlib and numpy raise
        print(f"{path} is damaged: drawn again", file=sys.stderr)
        return None


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
        known = f"resolution must be one of {RESOLUTIONS}, not {side}"
        self.require(side in RESOLUTIONS, known)
        wrong = f"all pixels of resolution {side}; it is {self.max_length:,}"
        fits = self.max_length == pixels
        self.require(fits, f"max_length must be {pixels:,}, {wrong}")
        known = f"one of {', '.join(RELEASED_FOLDERS)}, not {self.difficulty!r}"
        fits = self.difficulty in RELEASED_FOLDERS
        self.require(fits, f"difficulty must be {known}")
        self.require(self.num_examples >= 10, "num_examples must be at least 10")
        self.require(self.num_workers >= 1, "num_workers must be at least 1")

    def pinned_options(self) -> dict[str, Any]:
        released = ("num_examples", "seed") if self.source_dir else ()
        idle = ("num_workers", *released)
        options = super().pinned_options()
        return {name: v for name, v in options.items() if name not in idle}

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        loaded = super().load(split, data_dir)
        shutil.rmtree(self._parts(data_dir), ignore_errors=True)  # no longer needed
        return loaded

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        if self.source_dir is not None:
            folder = self._find_released(Path(self.source_dir))
            pictures = Split.of_pictures(*read_released(folder, self.resolution))
        else:  # picture i is independent of the others: the order is as good as any
            pictures = Split.of_pictures(*self._draw(self._parts(data_dir)))
        n = pictures.num_examples
        ends = [0, round(0.8 * n), round(0.8 * n) + round(0.1 * n), n]
        cut = (pictures.take(slice(*between)) for between in pairwise(ends))
        return separate(self.name, dict(zip(SPLITS, cut, strict=True)))

    def _find_released(self, source_dir: Path) -> Path:
        name = RELEASED_FOLDERS[self.difficulty]
        below = f"pathfinder{self.resolution}/{name}"
        release = f"lra_release/{below}"
        names = [f"lra_release/{release}", release, below, name]
        if folder := archives.find_folder(source_dir, names):
            return folder
        raise DataError(
            f"{source_dir} has no {below}: it is in {archives.LRA_RELEASE}, to be "
            "unpacked there"
        )

    def _parts(self, data_dir: PathLike | None) -> Path:
        """The folder of pictures drawn so far, beside the dataset they are for."""
        return self.folder(data_dir).with_name(f"parts-{self.version}")

    def _draw(self, folder: Path) -> list[np.ndarray]:
        """Pictures and labels, in parts that a killed process leaves behind."""
        folder.mkdir(parents=True, exist_ok=True)
        everyone, size = np.arange(self.num_examples), self.part_pixels
        indices = np.split(everyone, everyone[:: size // self.resolution**2][1:])
        paths = [folder / f"{part[0]}-{part[-1]}.npz" for part in indices]
        parts = [_read_part(path) for path in paths]
        missing = [number for number, part in enumerate(parts) if part is None]
        with Progress(self.name, self.num_examples) as bar:
            bar.update(sum(len(part[1]) for part in parts if part))
            options = {"resolution": self.resolution, "difficulty": self.difficulty}
            todo = [indices[number] for number in missing]
            drawn = draw(todo, self.seed, self.num_workers, **options)
            with contextlib.closing(drawn):
                for number, part in zip(missing, drawn, strict=True):
                    unfinished = paths[number].with_suffix(".unfinished")
                    with unfinished.open("wb") as file:
                        np.savez_compressed(file, images=part[0], labels=part[1])
                    unfinished.replace(paths[number])
                    parts[number] = part
                    bar.update(len(part[1]))
        columns = zip(*filter(None, parts), strict=True)
        return [np.concatenate(column) for column in columns]

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(self.resolution, self.resolution)


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
