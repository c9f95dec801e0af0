"""Pathfinder: are the two markers on the ends of one contour? Pixel by pixel.

Linsley et al. 2018 (arXiv:1805.08315) in the sizes of Long Range Arena (Tay et al.
2021, arXiv:2011.04006). The pictures are drawn here; the released folders are read when
`source_dir` names them. Path-X is the same at 128 × 128.
"""

import functools
import multiprocessing
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from tqdm import tqdm

from lra_tasks.archives import LRA_RELEASE, UNPACKED, Archive
from lra_tasks.base import Task
from lra_tasks.errors import DataError
from lra_tasks.pathfinder_generator import generate
from lra_tasks.pathfinder_paddles import DIFFICULTIES, RESOLUTIONS
from lra_tasks.split import Split

PART_SIZE = 2048  # so many pictures grow in lock-step: fast for all resolutions
RELEASED_SEED = 42  # of the permutation that cuts the released pictures in splits
FOLDERS = {  # of the release, by the difficulty
    name: "curv_baseline" if name == "easy" else f"curv_contour_length_{length}"
    for name, length in DIFFICULTIES.items()
}
LABELS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


def released_lists(folder: Path) -> list[Path]:
    """The release's metadata/K.npy in the order of K; macOS leaves a ._K.npy beside."""
    files = [x for x in folder.glob("metadata/*.npy") if not x.name.startswith(".")]
    for path in files:
        if not path.stem.isdecimal():
            raise DataError(
                f"{path} is none of the release's 0.npy, 1.npy, …: remove it"
            )
    return sorted(files, key=lambda path: int(path.stem))


def read_list(path: Path) -> list[tuple[str, int]]:
    """The pictures of a metadata/K.npy, text despite its name, and their labels."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text, as the release has it: unpack the release again"
        ) from None

    pictures = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words:
            continue
        if len(words) < 4 or words[3] not in LABELS:
            raise DataError(
                f"{path}, line {number} is not imgs/K sample_I.png I LABEL, of which "
                f"LABEL is 0 or 1: {line:.60}"
            )
        pictures.append((f"{words[0]}/{words[1]}", LABELS[words[3]]))
    return pictures


def read_picture(path: Path, resolution: int) -> np.ndarray | None:
    """The intensities uint8 `[resolution, resolution]`; None for an empty file."""
    if not path.exists():
        raise DataError(f"{path} is in metadata/ but missing: unpack the release again")
    if not path.stat().st_size:
        print(f"{path} is empty: left out", file=sys.stderr)
        return None
    try:
        with PIL.Image.open(path, formats=["PNG"]) as picture:
            image = np.asarray(picture.convert("L"))
        return image.reshape(resolution, resolution)
    except (OSError, SyntaxError, ValueError) as error:
        wanted = f"PNG picture of {resolution} x {resolution}"
        raise DataError(f"{path} is not a whole {wanted} ({error})") from error


def read_released(folder: Path, resolution: int) -> Split:
    """Reads imgs/K/sample_I.png as metadata/K.npy lists them.

    They are permuted with RELEASED_SEED. Empty files (one in the release) are skipped.
    """
    images, labels = [], []
    pictures = [x for path in released_lists(folder) for x in read_list(path)]
    for name, label in tqdm(pictures, "pictures", disable=None):
        image = read_picture(folder / name, resolution)
        if image is not None:
            images.append(image)
            labels.append(label)
    if not images:
        raise DataError(f"{folder} is not unpacked, or has no pictures in metadata/")
    order = np.random.default_rng(RELEASED_SEED).permutation(len(images))
    return Split.of_pictures(np.stack(images)[order], np.array(labels)[order])


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    """The benchmark by default: 200,000 pictures, drawn by `num_workers` processes.

    None is one, but training and scripts/prepare_data.py take all cores. A script of
    yours with several needs the usual `if __name__ == "__main__":`.
    With `source_dir`, the release's `pathfinder32`, `…64`, `…128` or a folder above or
    below, all its pictures are read; `num_examples`, `seed`, `num_workers` are unused.

    `easier_share` of train are pictures of the next easier difficulty, beside all that
    would be there without; validation and test stay as they are. With `source_dir` they
    are of the folder of that difficulty, beside the other.
    """

    name: ClassVar[str] = "pathfinder"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Are both markers on the ends of one dashed contour?"
    homepage: ClassVar[str] = "https://github.com/drewlinsley/pathfinder"
    citation: ClassVar[str] = "Linsley et al., Long-range spatial, NeurIPS 2018"
    vocab_size: ClassVar[int] = 256
    padded: ClassVar[bool] = False
    zero_is_padding: ClassVar[bool] = False
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[Sequence[str]] = ("apart", "connected")
    augmentations: ClassVar[tuple[str, ...]] = ("flip_horizontal", "flip_vertical")
    resolution: int = 32
    max_length: int = 1024
    difficulty: str = "hard"
    num_examples: int = 200_000
    seed: int = 0
    num_workers: int | None = None
    easier_share: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        side = self.resolution
        known = f"one of {tuple(RESOLUTIONS)}, not {side}"
        self.require(side in RESOLUTIONS, f"resolution must be {known}")
        wrong = f"max_length must be {side**2:,}, all pixels of resolution {side}"
        self.require(self.max_length == side**2, wrong)
        known = f"one of {', '.join(DIFFICULTIES)}, not {self.difficulty!r}"
        self.require(self.difficulty in DIFFICULTIES, f"difficulty must be {known}")
        share = self.easier_share
        self.require(0 <= share < 1, f"easier_share must be in [0, 1), not {share}")
        easiest = self.difficulty == "easy"
        wrong = f"easier_share must be 0 with difficulty 'easy', not {share}"
        self.require(not (share and easiest), wrong)

    @property
    def archive(self) -> Archive | None:
        """The release; generated pictures have none."""
        if not self.source_dir:
            return None
        name = FOLDERS[self.difficulty]
        folders = [f"{above}pathfinder{self.resolution}/{name}" for above in UNPACKED]
        # A folder of another difficulty has the same content, so it is not taken for
        # this one under a new name.
        is_named = Path(self.source_dir).name in FOLDERS.values()
        return Archive(
            LRA_RELEASE,
            folders=(name, *folders),
            content="" if is_named else "metadata",
        )

    @property
    def easier(self) -> str:
        """The next easier difficulty."""
        names = list(DIFFICULTIES)
        return names[names.index(self.difficulty) - 1]

    def source_files(self) -> list[Path]:
        folder = self.find_source(Path())
        files = released_lists(folder)
        if self.easier_share:
            files += released_lists(folder.with_name(FOLDERS[self.easier]))
        return files

    def cache_key(self) -> dict[str, Any]:
        idle = ("num_workers", *(("num_examples", "seed") if self.source_dir else ()))
        if not self.easier_share:
            idle = (*idle, "easier_share")
        return {name: x for name, x in super().cache_key().items() if name not in idle}

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            pictures = read_released(source, self.resolution)
        else:  # picture i is independent of the others: the order is as good as any
            pictures = self._draw(0, self.num_examples, self.difficulty)
        n = pictures.num_examples
        train, validation = round(0.8 * n), round(0.1 * n)
        splits = pictures.cut((train, validation, n - train - validation))
        if self.easier_share:
            number = round(train * self.easier_share / (1 - self.easier_share))
            easier = self._easier_pictures(source, number)
            splits["train"] = splits["train"].followed_by(easier)
        return splits

    def _easier_pictures(self, source: Path, number: int) -> Split:
        """Pictures of the next easier difficulty, other ones than those above."""
        if not self.source_dir:
            return self._draw(self.num_examples, number, self.easier)
        folder = source.with_name(FOLDERS[self.easier])
        easier = read_released(folder, self.resolution)
        few = f"{folder} has {easier.num_examples:,} pictures, fewer than {number:,}"
        self.require(easier.num_examples >= number, f"{few}: lower easier_share")
        return easier.take(slice(number))

    def _draw(self, first: int, number: int, difficulty: str) -> Split:
        """Draws pictures first, first + 1, …; those of a part grow in lock-step."""
        parts = np.split(
            np.arange(first, first + number), range(PART_SIZE, number, PART_SIZE)
        )
        options = {"resolution": self.resolution, "difficulty": difficulty}
        draw = functools.partial(generate, self.seed, **options)
        workers = min(self.num_workers or 1, len(parts))
        end_silently = signal.signal, (signal.SIGINT, signal.SIG_DFL)  # at Ctrl-C
        spawn = multiprocessing.get_context("spawn")
        pool = spawn.Pool(workers, *end_silently) if workers > 1 else ThreadPool(1)
        with pool:
            shown = tqdm(pool.imap(draw, parts), self.name, len(parts), disable=None)
            return Split.of_pictures(*map(np.concatenate, zip(*shown, strict=True)))


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
