"""Pathfinder: are the two markers on the ends of one contour? Pixel by pixel.

Linsley et al. 2018 (arXiv:1805.08315) in the sizes of Long Range Arena (Tay et al.
2021, arXiv:2011.04006). The pictures are drawn here; the released folders are read when
`source_dir` names them. Path-X is the same at 128 × 128. Black pixels are tokens here,
as in `image`, and padding in the models of the configs.
"""

import contextlib
import functools
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy import ndimage
from tqdm import tqdm

from lra_tasks.archives import LRA_RELEASE, UNPACKED, Archive
from lra_tasks.errors import DataError
from lra_tasks.pathfinder.drawing import (
    DIFFICULTIES,
    RESOLUTIONS,
    generate,
    get_settings,
)
from lra_tasks.pathfinder.released import find_lists, read_released
from lra_tasks.split import Split
from lra_tasks.task import Task

# So many pictures grow in lock-step, which is fast for all resolutions.
PART_SIZE = 2048
# Of a train split with more pixels than this, evenly spaced pictures fit a floor.
MAX_PIXELS = 2**28
# Markers are looked for in so many pixels at a time, which bounds the memory.
PIXELS_AT_A_TIME = 2**22
# The release's folder of each difficulty.
FOLDERS = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}
# Draws the pictures of these indices: their intensities, and their labels.
DrawPart = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Pathfinder(Task):
    """By default the data of the benchmark: 200,000 pictures.

    They are drawn by `num_workers` processes: by default one, in training and
    scripts/prepare_data.py as many as there are cores. A script of yours with several
    needs the usual `if __name__ == "__main__":`.

    With `source_dir`, the folder of the release's `pathfinder32`, `…64`, `…128` or of
    the unpacked release, all its pictures are read; `num_examples`, `seed` and
    `num_workers` are unused.

    With `easier_share` > 0, pictures of the next easier difficulty are added to train
    until they are that share of it; validation and test stay as they are. With
    `source_dir` they come from the easier difficulty's folder, next to this one.
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
        self.require(
            self.resolution in RESOLUTIONS,
            f"resolution must be one of {tuple(RESOLUTIONS)}, not {self.resolution}",
        )
        num_pixels = self.resolution**2
        self.require(
            self.max_length == num_pixels,
            f"max_length must be {num_pixels:,}, all pixels of resolution "
            f"{self.resolution}",
        )
        self.require(
            self.difficulty in DIFFICULTIES,
            f"difficulty must be one of {', '.join(DIFFICULTIES)}, not "
            f"{self.difficulty!r}",
        )
        self.require(
            0 <= self.easier_share < 1,
            f"easier_share must be in [0, 1), not {self.easier_share}",
        )
        self.require(
            self.difficulty != "easy" or self.easier_share == 0,
            f"easier_share must be 0 with difficulty 'easy', not {self.easier_share}",
        )

    @property
    def archive(self) -> Archive | None:
        """The release; generated pictures have none."""
        if not self.source_dir:
            return None
        folder = f"pathfinder{self.resolution}/{FOLDERS[self.difficulty]}"
        return Archive(LRA_RELEASE, tuple(f"{above}{folder}" for above in UNPACKED))

    @property
    def easier(self) -> str:
        """The next easier difficulty."""
        names = list(DIFFICULTIES)
        return names[names.index(self.difficulty) - 1]

    def source_files(self) -> list[Path]:
        folder = self.find_source(Path())
        files = find_lists(folder)
        if self.easier_share:
            files += find_lists(folder.with_name(FOLDERS[self.easier]))
        return files

    def cache_key(self) -> dict[str, Any]:
        """As `Task.cache_key`, without the options that change nothing here."""
        key = super().cache_key()
        del key["num_workers"]
        if self.source_dir:
            del key["num_examples"]
            del key["seed"]
        if not self.easier_share:
            del key["easier_share"]
        return key

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            pictures = read_released(source, self.resolution)
        else:
            # Pictures are drawn independently, so the splits are cut in order. Only
            # labels come in pairs: one of 2j and 2j + 1 has 1.
            pictures = self._draw(0, self.num_examples, self.difficulty)
        num_train = round(0.8 * pictures.num_examples)
        num_validation = round(0.1 * pictures.num_examples)
        num_test = pictures.num_examples - num_train - num_validation
        splits = pictures.cut((num_train, num_validation, num_test))

        if self.easier_share:
            ratio = self.easier_share / (1 - self.easier_share)
            easier = self._easier_pictures(source, round(num_train * ratio))
            splits["train"] = splits["train"].concatenate(easier)
        return splits

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds the rule that knows how far the two markers are apart, and nothing else.

        It answers the more frequent label of that distance, in whole pixels, in `train`
        or, where that has more than MAX_PIXELS, as Path-X has, in a part of it.
        """
        stride = math.ceil(train.inputs.size / MAX_PIXELS)
        train = train.take(slice(None, None, stride))
        counts = np.zeros((2 * self.resolution, self.num_classes), int)
        np.add.at(counts, (self._marker_distances(train), train.labels), 1)

        by_label = counts.sum(axis=0)
        is_known = counts.any(axis=1, keepdims=True)
        guesses = np.where(is_known, counts, by_label).argmax(axis=1)
        guess = guesses[self._marker_distances(test)]
        return {
            **super().floors(train, test),
            "distance between the markers": float(np.mean(guess == test.labels)),
        }

    def _marker_distances(self, split: Split) -> np.ndarray:
        """How far the markers of each picture are apart, in whole pixels, [n]."""
        side = self.resolution
        radius = get_settings(side, self.difficulty).marker_radius
        pictures = split.inputs.reshape(-1, side, side)
        step = PIXELS_AT_A_TIME // self.max_length
        distances = []
        for start in range(0, len(pictures), step):
            markers = find_markers(pictures[start : start + step], radius)
            y, x = (markers[:, 0] - markers[:, 1]).T
            distances.append(np.rint(np.hypot(y, x)).astype(int))
        return np.concatenate(distances)

    def _easier_pictures(self, source: Path, count: int) -> Split:
        """Pictures of the next easier difficulty; drawn ones have other indices."""
        if not self.source_dir:
            return self._draw(self.num_examples, count, self.easier)
        folder = source.with_name(FOLDERS[self.easier])
        pictures = read_released(folder, self.resolution)
        self.require(
            pictures.num_examples >= count,
            f"{folder} has {pictures.num_examples:,} pictures, fewer than {count:,}: "
            "lower easier_share",
        )
        return pictures.take(slice(count))

    def _draw(self, first: int, count: int, difficulty: str) -> Split:
        """Draws pictures first, first + 1, …; those of a part grow in lock-step."""
        indices = np.arange(first, first + count)
        parts = np.split(indices, range(PART_SIZE, count, PART_SIZE))
        draw_part = functools.partial(
            generate, self.seed, resolution=self.resolution, difficulty=difficulty
        )
        num_workers = min(self.num_workers or 1, len(parts))
        if num_workers > 1:
            results = self._draw_in_processes(draw_part, parts, num_workers)
        else:
            results = map(draw_part, parts)

        images = []
        labels = []
        bar = tqdm(results, self.name, len(parts), disable=None)
        for part_images, part_labels in bar:
            images.append(part_images)
            labels.append(part_labels)
        return Split.from_pictures(np.concatenate(images), np.concatenate(labels))

    def _draw_in_processes(
        self, draw_part: DrawPart, parts: Sequence[np.ndarray], num_processes: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the pictures of each part; the processes take turns.

        A process goes on when its last part is taken, so that few parts wait.

        Raises:
          DataError: if a process fails or is killed.
        """
        spawn = multiprocessing.get_context("spawn")
        processes = []
        receivers = []
        try:
            for first in range(num_processes):
                receiver, sender = spawn.Pipe(duplex=False)
                process = spawn.Process(
                    target=_send_parts,
                    args=(sender, draw_part, parts[first::num_processes]),
                    daemon=True,
                )
                process.start()
                sender.close()  # The process has the other copy: they end together.
                processes.append(process)
                receivers.append(receiver)
            for number in range(len(parts)):
                worker = number % num_processes
                try:
                    pictures = receivers[worker].recv()
                except (EOFError, OSError) as error:
                    processes[worker].join()
                    if processes[worker].exitcode < 0:  # It is minus a signal.
                        raise DataError(
                            f"{self.name}: one of {num_processes} processes that draw "
                            "pictures was killed, as where memory runs out: lower "
                            "num_workers"
                        ) from error
                    raise DataError(
                        f"{self.name}: one of {num_processes} processes that draw "
                        "pictures has failed, with the error above"
                    ) from error
                yield pictures
        finally:
            for process, receiver in zip(processes, receivers, strict=True):
                process.kill()
                process.join()
                receiver.close()


def find_markers(pictures: np.ndarray, radius: float) -> np.ndarray:
    """Finds the two markers of each picture: where a box as large as one is brightest.

    The second is the brightest box whose middle is outside the first one. In drawn
    pictures of all sizes both are found, to a pixel, in more than 99 %.

    Args:
      pictures: uint8 [n, R, R].
      radius: that of a marker, in pixels.

    Returns:
      The middles of both boxes, (y, x), int [n, 2, 2].
    """
    num_pictures, side, _ = pictures.shape
    margin = math.ceil(radius) - 1  # from the middle of a box to its border
    sums = pictures.astype(np.int32)
    for axis in (1, 2):
        weights = np.ones(2 * margin + 1)
        sums = ndimage.correlate1d(sums, weights, axis, mode="constant")

    places = np.arange(side)
    markers = np.empty((num_pictures, 2, 2), int)
    for number in range(2):
        brightest = sums.reshape(num_pictures, -1).argmax(axis=1)
        markers[:, number] = np.stack(np.divmod(brightest, side), axis=1)
        # [n, 2, R]: which rows, and which columns, the box has.
        is_in_box = np.abs(places - markers[:, number, :, None]) <= margin
        sums[is_in_box[:, 0, :, None] & is_in_box[:, 1, None, :]] = -1
    return markers


def _send_parts(
    sender: Connection, draw_part: DrawPart, parts: Sequence[np.ndarray]
) -> None:
    """Draws parts and sends them; Ctrl-C and the end of the reader end it silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(BrokenPipeError):
        for part in parts:
            sender.send(draw_part(part))


@dataclass(frozen=True, kw_only=True)
class PathX(Pathfinder):
    """Pathfinder at 128 × 128: 16,384 tokens."""

    name: ClassVar[str] = "pathx"
    resolution: int = 128
    max_length: int = 16_384
