"""Generates Pathfinder pictures (Linsley et al. 2018) with LRA's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones.

Picture i is a function of (seed, i) and the settings alone, whatever the batch, the
order and the number of processes. Resolutions are 32 (LRA's Pathfinder), 64 and 128
(Path-X); the difficulty (easy, intermediate, hard) is the length of the contours (6, 9,
14 paddles). LRA's benchmark is 32 hard.
"""

import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence

import numpy as np

from lra_tasks.pathfinder_growth import Growth, Streams
from lra_tasks.pathfinder_paddles import Settings, get_paddles, get_settings

PART_PIXELS = 2**22  # this many grow in lock-step: the fastest for all resolutions
_LABEL_STREAM = 1  # the streams of a seed: 0 grows the pictures, 1 decides the labels


def generate(
    seed: int, indices: np.ndarray, *, resolution: int = 32, difficulty: str = "hard"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws the pictures of a seed with the given indices `[n]`, in any order.

    Returns:
      Images uint8 `[n, R, R]` and labels int64 `[n]`.
    """
    indices = np.asarray(indices, np.int64)
    images = np.empty((len(indices), resolution, resolution), np.uint8)
    labels = np.empty(len(indices), np.int64)
    settings = get_settings(resolution, difficulty)
    for rows, growth, markers, part in grow(settings, seed, indices):
        images[rows], labels[rows] = _paint(growth, markers), part
    return images, labels


def grow(
    settings: Settings, seed: int, indices: np.ndarray
) -> Iterator[tuple[np.ndarray, Growth, np.ndarray, np.ndarray]]:
    """Yields for each margin rows `[r]` of the indices, and of these pictures the
    paddles, the markers' canvas positions `[r, 2]` and the labels `[r]`."""
    everyone = np.arange(len(indices))
    coins = Streams(seed, indices // 2, _LABEL_STREAM)  # one for pictures 2j, 2j + 1
    labels = coins.below(everyone, 2) ^ (indices % 2)  # one of them gets label 1
    streams = Streams(seed, indices)
    margins = np.array(settings.margins)[streams.below(everyone, len(settings.margins))]
    first = streams.below(everyone, 2)  # the contour that bears the first marker
    for margin in settings.margins:
        rows = np.flatnonzero(margins == margin)
        growth = Growth(get_paddles(settings, margin), streams.take(rows)).run()
        tips = growth.tips()
        begin, end = first[rows], first[rows] ^ (1 - labels[rows])
        markers = [tips[growth.rows, 0, begin], tips[growth.rows, 1, end]]
        yield rows, growth, np.stack(markers, axis=1), labels[rows]


def _stamp(canvas: np.ndarray, width: int, rows, position, windows: np.ndarray):
    """Takes the maximum of canvas [n, width²] with windows [r, W, W] at positions."""
    radius = windows.shape[1] // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    here = rows[:, None], position[:, None] + (y * width + x).ravel()
    canvas[here] = np.maximum(canvas[here], windows.reshape(-1, y.size))


def _paint(growth: Growth, markers: np.ndarray) -> np.ndarray:
    """Images uint8 [n, R, R]; the brightest pixel of each is 255."""
    p = growth.paddles
    n, slots = growth.anchor.shape
    canvas = np.zeros((n, p.width**2), np.int16)
    length = p.settings.distractor_length
    for slot in range(slots):
        kind, rows = 0, growth.rows
        if slot >= growth.contour_slots:
            which = (slot - growth.contour_slots) // length
            kind, rows = 1, np.flatnonzero(growth.has_distractor[:, which])
        windows = p.ink[kind, growth.stamp[rows, slot]]
        _stamp(canvas, p.width, rows, growth.anchor[rows, slot], windows)
    for position in markers.T:
        windows = np.broadcast_to(p.marker, (n, *p.marker.shape))
        _stamp(canvas, p.width, growth.rows, position, windows)
    inner = slice(p.pad, p.width - p.pad)
    canvas = canvas.reshape(n, p.width, p.width)[:, inner, inner].astype(np.int32)
    return (canvas * 255 // canvas.max(axis=(1, 2), keepdims=True)).astype(np.uint8)


def draw(
    parts: Sequence[np.ndarray], seed: int, num_workers: int, **options
) -> Generator[tuple[np.ndarray, np.ndarray], None, None]:
    """Yields what `generate` returns for each list of indices.

    A list grows in lock-step, `num_workers` of them at a time, in processes of their
    own: a script needs the usual `if __name__ == "__main__":`.
    """
    if num_workers == 1 or len(parts) < 2:
        for indices in parts:
            yield generate(seed, indices, **options)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(parts)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        yield from pool.map(functools.partial(generate, seed, **options), parts)
    finally:  # Ctrl-C too: nobody wants the other pictures
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent process, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
