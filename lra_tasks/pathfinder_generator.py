"""Generates Pathfinder pictures (Linsley et al. 2018) with LRA's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones:

    images, labels = generate(seed=0, indices=range(1000), num_workers=2)

Picture i is a function of (seed, i) and the settings alone, whatever the batch, the
order and the number of processes. Resolutions are 32 (LRA's Pathfinder), 64, 128
(Path-X) and 256; the difficulty (easy, intermediate, hard) is the length of the
contours (6, 9, 14 paddles). LRA's benchmark is 32 hard.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from lra_tasks.pathfinder_growth import Growth, Streams
from lra_tasks.pathfinder_paddles import Settings, get_paddles, get_settings
from lra_tasks.split import DataError

PART_PIXELS = 2**22  # this many grow in lock-step: the fastest for all resolutions
_LABEL_STREAM = 1  # the streams of a seed: 0 grows the pictures, 1 decides the labels


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Where everything lies in n pictures; coordinates are (y, x) in pixels.

    Attributes:
      labels: [n], 0 or 1.
      margins: [n], the free space around the paddles, in pixels.
      contours: [n, 2, paddles, 2, 2], tail and head of each paddle, in growing order.
      distractors: [n, number, paddles, 2, 2], likewise.
      has_distractor: [n, number], False where there was no room for one.
      markers: [n, 2, 2], the first tip of one contour, the last tip of the same or
        of the other one.
    """

    labels: np.ndarray
    margins: np.ndarray
    contours: np.ndarray
    distractors: np.ndarray
    has_distractor: np.ndarray
    markers: np.ndarray


def generate(
    seed: int,
    indices: Sequence[int] | np.ndarray,
    *,
    resolution: int = 32,
    difficulty: str = "hard",
    num_workers: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws the pictures with the given indices.

    Args:
      seed: of the whole data set, 0 to 2**63 - 1.
      indices: n picture numbers from 0 on, in any order.
      resolution: 32, 64, 128 or 256 pixels.
      difficulty: "easy", "intermediate" or "hard".
      num_workers: processes; with more than one, a script needs the usual
        `if __name__ == "__main__":` since they are spawned.

    Returns:
      Images uint8 [n, R, R] and labels int64 [n].
    """
    settings = get_settings(resolution, difficulty)
    indices = _check(seed, indices)
    if not isinstance(num_workers, int | np.integer) or num_workers < 1:
        raise ValueError(f"num_workers must be 1 or more, got {num_workers!r}")
    images = np.empty((len(indices), resolution, resolution), np.uint8)
    labels = np.empty(len(indices), np.int64)
    size = min(PART_PIXELS // resolution**2, max(1, -(-len(indices) // num_workers)))
    parts = [slice(start, start + size) for start in range(0, len(indices), size)]
    lists = [indices[part] for part in parts]
    with contextlib.closing(draw(settings, seed, lists, num_workers)) as drawn:
        for part, (some, their_labels) in zip(parts, drawn, strict=True):
            images[part], labels[part] = some, their_labels
    return images, labels


def trace(
    seed: int,
    indices: Sequence[int] | np.ndarray,
    *,
    resolution: int = 32,
    difficulty: str = "hard",
) -> Geometry:
    """Returns what `generate` draws with the same arguments, as coordinates."""
    settings = get_settings(resolution, difficulty)
    indices = _check(seed, indices)
    n, length = len(indices), settings.distractor_length
    geometry = Geometry(
        labels=np.empty(n, np.int64),
        margins=np.empty(n, np.int64),
        contours=np.empty((n, 2, settings.contour_length, 2, 2), np.int64),
        distractors=np.empty((n, settings.num_distractors, length, 2, 2), np.int64),
        has_distractor=np.empty((n, settings.num_distractors), bool),
        markers=np.empty((n, 2, 2), np.int64),
    )
    for rows, growth, markers, labels in _grow(settings, seed, indices):
        p = growth.paddles
        ends = np.stack([p.tail[growth.stamp], p.head[growth.stamp]], axis=2)
        ends += p.coordinates(growth.anchor)[:, :, None]
        contours, distractors = np.split(ends, [growth.contour_slots], axis=1)
        geometry.labels[rows] = labels
        geometry.margins[rows] = p.margin
        geometry.contours[rows] = contours.reshape(geometry.contours[rows].shape)
        shape = geometry.distractors[rows].shape
        geometry.distractors[rows] = distractors.reshape(shape)
        geometry.has_distractor[rows] = growth.has_distractor
        geometry.markers[rows] = p.coordinates(markers)
    return geometry


def _check(seed: int, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be an integer from 0 to 2**63 - 1, got {seed!r}")
    array = np.asarray(indices, None if len(indices) else np.int64)
    numbers = array.astype(np.int64) if array.dtype.kind in "iu" else None
    if numbers is None or numbers.ndim != 1 or (numbers < 0).any():
        raise ValueError("indices must be a list of integers from 0 on")
    return numbers


# --- growing and drawing ------------------------------------------------------------


def _labels(seed: int, indices: np.ndarray) -> np.ndarray:
    """A coin for each pair of pictures 2j, 2j + 1; one of them gets label 1."""
    streams = Streams(seed, indices // 2, _LABEL_STREAM)
    return streams.below(np.arange(len(indices)), 2) ^ (indices % 2)


def _grow(settings: Settings, seed: int, indices: np.ndarray):
    """Yields (rows, Growth, marker positions [r, 2], labels [r]) for each margin."""
    labels = _labels(seed, indices)
    streams = Streams(seed, indices)
    everyone = np.arange(len(indices))
    margins = np.array(settings.margins)[streams.below(everyone, len(settings.margins))]
    first = streams.below(everyone, 2)  # the contour that bears the first marker
    for margin in settings.margins:
        rows = np.flatnonzero(margins == margin)
        paddles = get_paddles(settings, margin)
        growth = Growth(paddles, streams.take(rows)).run()
        length = settings.contour_length
        begin, end = first[rows], first[rows] ^ (1 - labels[rows])
        markers = np.stack(
            [
                growth.anchor[growth.rows, begin * length],
                growth.anchor[growth.rows, end * length + length - 1],
            ],
            axis=1,
        )
        yield rows, growth, markers, labels[rows]


def _stamp(canvas: np.ndarray, width: int, rows, position, windows: np.ndarray):
    """Takes the maximum of canvas [n, width²] with windows [r, W, W] at positions."""
    radius = windows.shape[1] // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    at = position[:, None] + (y * width + x).ravel()
    here = rows[:, None], at
    canvas[here] = np.maximum(canvas[here], windows.reshape(-1, at.shape[1]))


def _paint(growth: Growth, markers: np.ndarray) -> np.ndarray:
    """Images uint8 [n, R, R]; the brightest pixel of each is 255."""
    p = growth.paddles
    n, slots = growth.anchor.shape
    canvas = np.zeros((n, p.width**2), np.int16)
    length = p.settings.distractor_length
    for slot in range(slots):
        kind, rows = 0, growth.rows
        if slot >= growth.contour_slots:
            kind = 1
            which = (slot - growth.contour_slots) // length
            rows = np.flatnonzero(growth.has_distractor[:, which])
        windows = p.ink[kind, growth.stamp[rows, slot]]
        _stamp(canvas, p.width, rows, growth.anchor[rows, slot], windows)
    for position in markers.T:
        windows = np.broadcast_to(p.marker, (n, *p.marker.shape))
        _stamp(canvas, p.width, growth.rows, position, windows)
    inner = slice(p.pad, p.width - p.pad)
    canvas = canvas.reshape(n, p.width, p.width)[:, inner, inner].astype(np.int32)
    brightest = canvas.max(axis=(1, 2), keepdims=True)
    return (canvas * 255 // brightest).astype(np.uint8)


def _draw_part(
    settings: Settings, seed: int, indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, as `generate` returns them."""
    images = np.empty((len(indices), *[settings.resolution] * 2), np.uint8)
    labels = np.empty_like(indices)
    for rows, growth, markers, part in _grow(settings, seed, indices):
        images[rows], labels[rows] = _paint(growth, markers), part
    return images, labels


# --- processes ----------------------------------------------------------------------


def draw(
    settings: Settings, seed: int, parts: Sequence[np.ndarray], num_workers: int
) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    """Yields images and labels, as `generate` returns them, of lists of indices.

    A list grows in lock-step, `num_workers` of them at a time. Closing the generator
    ends the processes.

    Raises:
      DataError: a process was killed.
    """
    if num_workers == 1 or len(parts) < 2:
        for indices in parts:
            yield _draw_part(settings, seed, indices)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(parts)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    waiting = collections.deque()  # few, for a result stays in memory until it is taken
    try:
        for indices in parts:
            waiting.append(pool.submit(_draw_part, settings, seed, indices))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BaseException as error:  # Ctrl-C too: nobody wants the other pictures
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        if isinstance(error, BrokenProcessPool):
            raise DataError(
                "a process that draws pictures was killed: run again, with fewer "
                "num_workers if memory was short"
            ) from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent process, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
