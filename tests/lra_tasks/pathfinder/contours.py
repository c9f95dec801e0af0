"""Reads labels off drawn Pathfinder pictures: follows the contours, paddle by paddle.

It knows the paddles, which may follow which, and how many a contour has. It is no
model: it shows that a picture holds its label. This prints how many of 2,000 pictures
it gets right:

    python -m tests.lra_tasks.pathfinder.contours hard
"""

import functools
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

    It may begin at either of them.

    Args:
      pictures: uint8 [n, 32, 32].
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
    # The brightest pixel of a picture is 255, whatever its ink. Markers tell the scale.
    rows = np.arange(len(canvas))
    scale = (canvas[rows, first].astype(float) + canvas[rows, second]) / 2
    find_paddle = functools.partial(_find_paddle, canvas, scale, paddles)

    positions = np.broadcast_to(np.arange(canvas.shape[1]), canvas.shape)
    later_stamps = range(NUM_DIRECTIONS, len(paddles.step))
    has_later = {stamp: find_paddle(stamp, positions) for stamp in later_stamps}
    is_joined = np.zeros(len(pictures), bool)
    for begin, end in [(first, second), (second, first)]:
        has_first = [
            find_paddle(stamp, begin[:, None])[:, 0] for stamp in range(NUM_DIRECTIONS)
        ]
        is_joined |= _follow_contour(paddles, begin, end, has_first, has_later)
    return is_joined


def _follow_contour(
    paddles: Paddles,
    begin: np.ndarray,
    end: np.ndarray,
    has_first: list[np.ndarray],
    has_later: dict[int, np.ndarray],
) -> np.ndarray:
    """Whether a contour leads from one marker to the other, bool [n].

    Args:
      paddles: the tables of the pictures.
      begin: the position of the marker where the contour would begin, [n].
      end: the position of the other marker, [n].
      has_first: whether a first paddle lies at `begin`, by its stamp, [n].
      has_later: whether any other paddle lies at a position, by its stamp, [n, P].
    """
    rows = np.arange(len(begin))
    # Where the next paddle of the contour may have its anchor, by its stamp.
    places = {stamp: np.zeros_like(has) for stamp, has in has_later.items()}
    for stamp in range(NUM_DIRECTIONS):
        for follower, shift in _list_followers(paddles, stamp):
            places[follower][rows, begin + shift] |= has_first[stamp]
    for _ in range(2, paddles.settings.contour_length):
        reached = {stamp: places[stamp] & has_later[stamp] for stamp in has_later}
        places = {stamp: np.zeros_like(has) for stamp, has in has_later.items()}
        for stamp in has_later:
            for follower, shift in _list_followers(paddles, stamp):
                places[follower] |= np.roll(reached[stamp], shift, axis=1)
    return np.any(
        [(places[stamp] & has_later[stamp])[rows, end] for stamp in has_later], axis=0
    )


def _find_paddle(
    canvas: np.ndarray,
    scale: np.ndarray,
    paddles: Paddles,
    stamp: int,
    anchors: np.ndarray,
) -> np.ndarray:
    """Whether all ink of a paddle is there, at anchors [n, A] of n pictures.

    Args:
      canvas: the pictures, with the canvas's border, [n, P].
      scale: how bright a marker is in each, [n].
      paddles: the tables of the pictures.
      stamp: which paddle.
      anchors: positions, [n, A].

    Returns:
      bool [n, A].
    """
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


def measure_accuracy(difficulty: str) -> float:
    """The accuracy in % on 2,000 pictures, in which the markers have to be found."""
    pictures, labels = generate(0, np.arange(2_000), difficulty=difficulty)
    radius = get_settings(pictures.shape[1], difficulty).marker_radius
    found = find_labels(pictures, find_markers(pictures, radius), difficulty)
    return 100 * float(np.mean(found == labels))


if __name__ == "__main__":
    print(f"{measure_accuracy(sys.argv[1]):.1f} % of 2,000 {sys.argv[1]} pictures")
