"""Pathfinder: do the two markers sit on the ends of one contour? Pixel by pixel.

Linsley et al. 2018 (arXiv:1805.08315) in the sizes of Long Range Arena (Tay et al.
2021, arXiv:2011.04006). The pictures are drawn here; the released folders are read when
`source_dir` names them. Path-X is the same at 128 × 128.
"""

import io
import os
import shutil
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image

from lra_tasks import archives
from lra_tasks.archives import PathLike
from lra_tasks.base import Task
from lra_tasks.partition import separate
from lra_tasks.pathfinder_generator import generate
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


def read_released(folder: Path, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them, text despite its name.

    Returns:
      Pictures uint8 `[n, R, R]` and labels int32 `[n]`. Empty files, of which the
      release has one, are left out with a warning.

    Raises:
      DataError: naming the file, for whatever is not as it should be.
    """
    listed = _read_metadata(folder)
    images = np.empty((len(listed), resolution, resolution), np.uint8)
    labels = np.empty(len(listed), np.int32)
    count = 0
    with Progress("pictures", len(listed)) as bar:
        for path, label in listed:
            bar.update(1)
            with path.open("rb") as file:
                content = archives.read_whole(file, str(path), MAX_PICTURE_BYTES)
            if not content:
                print(f"{path} is empty: left out", file=sys.stderr)
                continue
            images[count], labels[count] = _parse_png(content, path, resolution), label
            count += 1
    if not count:
        raise DataError(f"{folder} has no pictures")
    return images[:count], labels[:count]


def _read_metadata(folder: Path) -> list[tuple[Path, int]]:
    """The pictures' files and labels, by file of metadata and line."""
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
            listed.append((path, int(label)))
    if not listed:
        raise DataError(f"{folder} has no metadata/K.npy with pictures in it")
    return listed


def _parse_png(content: bytes, path: Path, resolution: int) -> np.ndarray:
    try:
        with PIL.Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            size = picture.size
            if size == (resolution, resolution):
                return np.asarray(picture.convert("L"))
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{path} is no whole PNG picture ({error})") from error
    raise DataError(f"{path} is {size[0]}x{size[1]}, not {resolution}x{resolution}")


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    """The benchmark by default: 200,000 pictures, drawn by `num_workers` processes.

    Pictures are kept in parts as they come, so that a preparation that was stopped
    goes on where it was. With `source_dir`, the release's `pathfinder32`, `…64`, … or
    a folder above or below, its pictures are read instead and `num_examples`, `seed`
    and `num_workers` do not count.
    """

    name: ClassVar[str] = "pathfinder"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 256
    num_classes: ClassVar[int] = 2
    part_pixels: ClassVar[int] = 2**23
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
        return {key: v for key, v in asdict(self).items() if key != "num_workers"}

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        loaded = super().load(split, data_dir)
        shutil.rmtree(self._parts(data_dir), ignore_errors=True)  # no longer needed
        return loaded

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        if self.source_dir is not None:
            folder = self._find_released(Path(self.source_dir))
            images, labels = read_released(folder, self.resolution)
            order = np.random.default_rng(RELEASED_SEED).permutation(len(images))
            images, labels = images[order], labels[order]
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

    def _generate(self, parts: Path) -> tuple[np.ndarray, np.ndarray]:
        parts.mkdir(parents=True, exist_ok=True)
        images = np.empty(
            (self.num_examples, self.resolution, self.resolution), np.uint8
        )
        labels = np.empty(self.num_examples, np.int32)
        size = self.part_pixels // self.resolution**2
        with Progress(self.name, self.num_examples) as bar:
            for start in range(0, self.num_examples, size):
                part = slice(start, min(start + size, self.num_examples))
                images[part], labels[part] = self._draw_part(parts, part)
                bar.update(part.stop - start)
        return images, labels

    def _draw_part(self, parts: Path, part: slice) -> tuple[np.ndarray, np.ndarray]:
        """Pictures part.start to part.stop: as they were kept, or drawn and kept."""
        path = parts / f"{part.start}.npz"
        try:
            with path.open("rb") as file, np.load(file) as kept:
                return kept["images"], kept["labels"]
        except FileNotFoundError:
            pass
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            print(f"{path} is damaged: drawn again", file=sys.stderr)
        images, labels = generate(
            self.seed,
            range(part.start, part.stop),
            resolution=self.resolution,
            difficulty=self.difficulty,
            num_workers=self.num_workers,
        )
        unfinished = path.with_suffix(".unfinished")
        try:
            with unfinished.open("wb") as file:
                np.savez_compressed(file, images=images, labels=labels)
        except OSError as error:  # as the disk says it, but where
            raise OSError(error.errno, error.strerror, str(unfinished)) from error
        os.replace(unfinished, path)
        return images, labels

    def decode(self, tokens: np.ndarray) -> np.ndarray:
        return tokens.reshape(self.resolution, self.resolution)


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
