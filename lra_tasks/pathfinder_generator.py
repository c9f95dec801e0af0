"""Generates Pathfinder pictures (Linsley et al. 2018) with LRA's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones:

    images, labels = generate(seed=0, indices=range(1000), num_workers=2)

Picture i is a function of (seed, i) and the settings alone, whatever the batch, the
order and the number of processes. Resolutions are 32 (LRA's Pathfinder), 64, 128
(Path-X) and 256; the difficulty (easy, intermediate, hard) is the length of the
contours (6, 9, 14 paddles). LRA's benchmark is 32 hard. To look at some:

    python -m lra_tasks.pathfinder_generator results/pathfinder_samples.png
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence

import numpy as np
from PIL import Image
from tqdm import tqdm

from lra_tasks.pathfinder_growth import Growth, Streams
from lra_tasks.pathfinder_paddles import (
    DIFFICULTIES,
    RESOLUTIONS,
    Settings,
    get_paddles,
    get_settings,
)

_CHUNK_IMAGES, _CHUNK_PIXELS = 2**11, 2**24  # at most this many grow in lock-step
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
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws the pictures with the given indices.

    Args:
      seed: of the whole data set, 0 to 2**63 - 1.
      indices: n picture numbers from 0 on, in any order.
      resolution: 32, 64, 128 or 256 pixels.
      difficulty: "easy", "intermediate" or "hard".
      num_workers: processes; with more than one, a script needs the usual
        `if __name__ == "__main__":` since they are spawned.
      progress: show a bar on a terminal.

    Returns:
      Images uint8 [n, R, R] and labels int64 [n].
    """
    settings = get_settings(resolution, difficulty)
    indices = _check(seed, indices)
    if not isinstance(num_workers, int | np.integer) or num_workers < 1:
        raise ValueError(f"num_workers must be 1 or more, got {num_workers!r}")
    images = np.empty((len(indices), resolution, resolution), np.uint8)
    labels = np.empty(len(indices), np.int64)
    size = min(_CHUNK_IMAGES, _CHUNK_PIXELS // resolution**2)
    size = min(size, max(1, -(-len(indices) // num_workers)))
    starts = range(0, len(indices), size)
    jobs = [(settings, seed, indices[start : start + size]) for start in starts]
    bar = tqdm(total=len(indices), unit="image", disable=None if progress else True)
    with bar, contextlib.closing(_run(jobs, num_workers)) as results:
        for start, done in zip(starts, results, strict=True):
            images[start : start + size], labels[start : start + size] = done
            bar.update(len(done[1]))
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


def _draw(growth: Growth, markers: np.ndarray) -> np.ndarray:
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


def _generate_chunk(settings: Settings, seed: int, indices: np.ndarray):
    """Images and labels, as `generate` returns them."""
    images = np.empty((len(indices), *[settings.resolution] * 2), np.uint8)
    labels = np.empty_like(indices)
    for rows, growth, markers, part in _grow(settings, seed, indices):
        images[rows], labels[rows] = _draw(growth, markers), part
    return images, labels


# --- processes ----------------------------------------------------------------------


def _run(jobs: list, num_workers: int):
    """Yields the chunks in order. Fails, and ends, when a worker does."""
    if num_workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield _generate_chunk(*job)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(jobs)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        for future in [pool.submit(_generate_chunk, *job) for job in jobs]:
            yield future.result()
    except BaseException:  # Ctrl-C too: do not wait for pictures that nobody wants
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker():
    """Leaves Ctrl-C to the parent process, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent():
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# --- for the eye ---


def contact_sheet(images: np.ndarray, columns: int = 8, pitch: int = 96) -> Image.Image:
    """Pictures side by side, each enlarged to fill most of `pitch` pixels."""
    zoom = max(1, pitch // images.shape[1])
    pitch = max(pitch, images.shape[1])
    sheet = Image.new("L", (columns * pitch, -(-len(images) // columns) * pitch))
    for i, image in enumerate(images.repeat(zoom, axis=1).repeat(zoom, axis=2)):
        row, column = divmod(i, columns)
        border = (pitch - image.shape[0]) // 2
        sheet.paste(
            Image.fromarray(image), (column * pitch + border, row * pitch + border)
        )
    return sheet


def _main():
    parser = argparse.ArgumentParser(
        description="Saves a sheet of Pathfinder pictures."
    )
    parser.add_argument("path")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_images", type=int, default=32)
    parser.add_argument("--resolution", type=int, default=32, choices=RESOLUTIONS)
    parser.add_argument("--difficulty", default="hard", choices=list(DIFFICULTIES))
    args = parser.parse_args()
    images, _ = generate(
        args.seed,
        range(args.num_images),
        resolution=args.resolution,
        difficulty=args.difficulty,
    )
    contact_sheet(images).save(args.path, optimize=True)


if __name__ == "__main__":
    _main()
