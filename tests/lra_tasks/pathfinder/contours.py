"""Reads labels off drawn Pathfinder pictures: follows the contours, paddle by paddle.

It knows which paddles there are and which may follow which. It is no model: it shows
that a picture holds its label. This prints how many of 2,000 pictures it gets right:

    python -m tests.lra_tasks.pathfinder.contours hard
"""

import sys

import numpy as np

from lra_tasks.pathfinder.drawing import (
    CONTOUR_INK,
    NUM_DIRECTIONS,
    Paddles,
    generate,
    get_paddles,
    get_settings,
)
from lra_tasks.pathfinder.tasks import find_markers

ROUNDING = 2  # how much darker than its ink a pixel may be, of 255
FAINT = 0.05  # ink that is not looked for, as a share of a marker's


def find_labels(
    pictures: np.ndarray, markers: np.ndarray, difficulty: str
) -> np.ndarray:
    """Whether one contour has both markers on its ends.

    Args:
      pictures: uint8 [n, R, R].
      markers: the middles of both markers, (y, x), [n, 2, 2].
      difficulty: one of DIFFICULTIES.

    Returns:
      bool [n].
    """
    settings = get_settings(pictures.shape[1], difficulty)
    [margin] = settings.margins
    paddles = get_paddles(settings, margin)
    first, second = paddles.position(markers[..., 0], markers[..., 1]).T
    padding = (paddles.pad, paddles.pad)
    canvas = np.pad(pictures, [(0, 0), padding, padding]).reshape(len(pictures), -1)
    forwards = _is_joined(canvas, paddles, first, second)
    backwards = _is_joined(canvas, paddles, second, first)
    return forwards | backwards


def _is_joined(
    canvas: np.ndarray, paddles: Paddles, begin: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Whether a contour leads from one marker to the other.

    Args:
      canvas: the pictures, with the canvas's border, [n, P].
      paddles: the tables of the pictures.
      begin: the position of the marker where the contour would begin, [n].
      end: that of the other, [n].
    """
    rows = np.arange(len(canvas))
    positions = np.broadcast_to(np.arange(canvas.shape[1]), canvas.shape)
    # The brightest pixel of a picture is 255, whatever its ink. Markers tell the scale.
    scale = (canvas[rows, begin].astype(float) + canvas[rows, end]) / 2

    # After each paddle of the contour: where one with this stamp may have its anchor.
    stamps = range(NUM_DIRECTIONS, len(paddles.step))
    exists = {s: _find(canvas, scale, paddles, s, positions) for s in stamps}
    reached = {s: np.zeros(canvas.shape, bool) for s in stamps}
    for stamp in range(NUM_DIRECTIONS):
        begins = _find(canvas, scale, paddles, stamp, begin[:, None])[:, 0]
        for follower, shift in _list_followers(paddles, stamp):
            reached[follower][rows, begin + shift] |= begins
    for _ in range(2, paddles.settings.contour_length):
        before = {s: reached[s] & exists[s] for s in stamps}
        reached = {s: np.zeros(canvas.shape, bool) for s in stamps}
        for stamp in stamps:
            for follower, shift in _list_followers(paddles, stamp):
                reached[follower] |= np.roll(before[stamp], shift, axis=1)
    return np.any([(reached[s] & exists[s])[rows, end] for s in stamps], axis=0)


def _find(
    canvas: np.ndarray,
    scale: np.ndarray,
    paddles: Paddles,
    stamp: int,
    anchors: np.ndarray,
) -> np.ndarray:
    """Whether all ink of a paddle is on the canvas, at anchors [n, A] of n pictures."""
    marker = paddles.marker[len(paddles.marker) // 2, len(paddles.marker) // 2]
    ink = paddles.ink[CONTOUR_INK, stamp] / marker
    radius = len(ink) // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    displacement = (y * paddles.width + x)[ink > FAINT]
    is_there = np.ones(anchors.shape, bool)
    for shift, wanted in zip(displacement, ink[ink > FAINT], strict=True):
        pixels = (anchors + shift).clip(0, canvas.shape[1] - 1)
        found = np.take_along_axis(canvas, pixels, axis=1)
        is_there &= found >= (wanted * scale - ROUNDING)[:, None]
    return is_there


def _list_followers(paddles: Paddles, stamp: int) -> list[tuple[int, int]]:
    """The paddles that may follow one, and how far from its anchor theirs are."""
    may_follow = paddles.choices[stamp][paddles.turn[stamp] > 0]
    to_pivot = paddles.step[stamp] - paddles.ring[stamp]
    return [(follower, to_pivot + paddles.ring[follower]) for follower in may_follow]


if __name__ == "__main__":
    difficulty = sys.argv[1]
    pictures, labels = generate(0, np.arange(2_000), difficulty=difficulty)
    radius = get_settings(pictures.shape[1], difficulty).marker_radius
    found = find_labels(pictures, find_markers(pictures, radius), difficulty)
    accuracy = 100 * np.mean(found == labels)
    print(f"{accuracy:.1f} % of {len(labels):,} {difficulty} pictures")
