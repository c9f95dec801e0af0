"""The paddles of Pathfinder: what they look like and how one follows another.

A contour is a chain of paddles, short antialiased lines that stand on whole pixels. A
paddle is thus one of a few hundred stamps (360 directions for the first of a chain; for
the others one for each pixel of a small ring around a pivot), and what growing and
drawing ask about it is a row of a table, made here once. All tables are integers, so
that a picture does not depend on the machine.

Lengths are pixels, coordinates (y, x), angles radians with direction (sin, cos), and
positions flat indices into a canvas that is `pad` pixels larger on each side.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

# The number of paddles in a long contour.
DIFFICULTIES = {"easy": 6, "intermediate": 9, "hard": 14}
# First paddles point along whole degrees.
NUM_DIRECTIONS = 360
# The weight of going straight ahead.
TURN_SCALE = 4096
# The ink of a marker.
INK_SCALE = 4096
# Paddles are drawn so many times larger and shrunk.
ANTIALIAS = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All that distinguishes one Pathfinder data set from another.

    Attributes:
      resolution: the side of a picture.
      contour_length: the number of paddles in a long contour.
      paddle_length: the length of a paddle.
      thickness: its width.
      margins: the free space around paddles; one of these is drawn for each picture.
      seed_distance: how far the two contours begin from one another.
      marker_radius: the radius of a marker.
      continuity: a larger one makes straighter contours.
      contour_contrast: the ink of the long contours.
      distractor_contrast: the ink of the distractors.
      distractor_paddles: the number of paddles in all distractors together.
      distractor_tries: how many random places a distractor may try; if it fails at all
        of them, it is left out.
    """

    resolution: int
    contour_length: int
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]
    seed_distance: int
    marker_radius: float
    continuity: float
    contour_contrast: float
    distractor_contrast: float
    distractor_paddles: int
    distractor_tries: int

    @property
    def distractor_length(self) -> int:
        return self.contour_length // 3

    @property
    def num_distractors(self) -> int:
        return self.distractor_paddles // self.distractor_length


# Long Range Arena's parameters, by the resolution. With one try at 32 pixels 1.2 of 5
# distractors appear, as in the public pictures.
RESOLUTIONS: dict[int, dict[str, Any]] = {
    32: {
        "paddle_length": 2,
        "thickness": 0.5,
        "margins": (1,),
        "seed_distance": 7,
        "marker_radius": 1.5,
        "continuity": 1.0,
        "contour_contrast": 1.5,
        "distractor_contrast": 2.0,
        "distractor_paddles": 20,
        "distractor_tries": 1,
    },
    64: {
        "paddle_length": 5,
        "thickness": 1.0,
        "margins": (1,),
        "seed_distance": 12,
        "marker_radius": 2.5,
        "continuity": 1.8,
        "contour_contrast": 0.8,
        "distractor_contrast": 0.8,
        "distractor_paddles": 22,
        "distractor_tries": 5,
    },
    128: {
        "paddle_length": 5,
        "thickness": 1.5,
        "margins": (2, 3),
        "seed_distance": 20,
        "marker_radius": 3.0,
        "continuity": 1.8,
        "contour_contrast": 0.9,
        "distractor_contrast": 0.9,
        "distractor_paddles": 35,
        "distractor_tries": 5,
    },
}


def get_settings(resolution: int, difficulty: str) -> Settings:
    """Returns the settings of one of RESOLUTIONS and of DIFFICULTIES."""
    return Settings(
        resolution=resolution,
        contour_length=DIFFICULTIES[difficulty],
        **RESOLUTIONS[resolution],
    )


def _along(
    angle: np.ndarray,
    distance: float,
    rounding: Callable[[np.ndarray], np.ndarray] = np.rint,
) -> np.ndarray:
    """Whole-pixel displacements [..., 2] by a distance at angles."""
    exact = distance * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    # Without the last digits 2.5 is 2.5 on every machine.
    return rounding(exact.round(9)).astype(np.int64)


def _disc(radius: int) -> np.ndarray:
    """Which pixels [2 radius + 1, 2 radius + 1] are within a radius of the middle."""
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return y**2 + x**2 <= radius**2


def _shrink(blown: np.ndarray, radius: int) -> np.ndarray:
    """Lanczos of [S, W, W] to [S, 2 radius + 1, 2 radius + 1], in 0..1."""
    size = (2 * radius + 1, 2 * radius + 1)
    windows = []
    for window in blown:
        image = Image.fromarray(window).resize(size, Image.Resampling.LANCZOS)
        windows.append(np.asarray(image))
    return np.stack(windows).astype(np.float64) / 255


class Paddles:
    """Tables of all S paddles of one data set and margin, P ring pixels among them.

    Paddles 0..359 are anchored at their tail and point along their degree; the
    others are anchored at their head, one for each place of the head on the ring.
    """

    def __init__(self, settings: Settings, margin: int):
        self.settings = settings
        length = settings.paddle_length
        self.pad = length + 2 * margin + int(np.ceil(settings.thickness)) + 1
        self.width = settings.resolution + 2 * self.pad  # of the canvas
        flat = np.array([self.width, 1])

        circumference = int(np.ceil(2 * np.pi * (length + margin)))
        arc = np.arange(circumference) / (length + margin)  # one for each pixel
        # Heads are rounded down and pivots up, which is how the public generator does
        # it and what its share of axis-parallel (brightest) paddles comes from.
        ring = np.unique(_along(arc, length + margin, np.floor), axis=0)
        degrees = np.deg2rad(np.arange(NUM_DIRECTIONS) - NUM_DIRECTIONS // 2)
        angle = np.concatenate([degrees, np.arctan2(ring[:, 0], ring[:, 1])])
        # [S] from the pivot to the next pivot, [S] from the pivot to the anchor, [360]
        # from the first contour's tail to the second's, [K] to all within the margin.
        self.step = _along(angle, length + 2 * margin, np.ceil) @ flat
        self.ring = np.concatenate([_along(degrees, margin), ring]) @ flat
        self.bearing = _along(degrees, settings.seed_distance) @ flat
        self.disc = (np.argwhere(_disc(margin)) - margin) @ flat

        delta = np.abs(angle[:, None] - angle[NUM_DIRECTIONS:])
        delta = np.minimum(delta, 2 * np.pi - delta) * settings.continuity
        weight = np.cos(np.minimum(delta, np.pi / 2)).clip(0) ** 2
        weight = np.rint(weight * TURN_SCALE).astype(np.int64)
        order = np.argsort(-weight, axis=1, kind="stable")
        order = order[:, : (weight > 0).sum(axis=1).max()]
        self.choices = order + NUM_DIRECTIONS  # [S, C] the paddles that may follow
        self.turn = np.take_along_axis(weight, order, 1)  # [S, C] and their weights

        is_first = np.arange(len(angle))[:, None] < NUM_DIRECTIONS
        ends = np.where(is_first, 1, -1) * _along(angle, length * ANTIALIAS)
        self._draw_paddles(ends, margin)
        self._draw_marker()

    def position(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Picture coordinates to canvas positions."""
        return (y + self.pad) * self.width + x + self.pad

    def _draw_paddles(self, ends: np.ndarray, margin: int) -> None:
        """Draws lines from the anchors to blown-up ends [S, 2], and what they mask."""
        settings = self.settings
        scale = ANTIALIAS
        blown = []
        radius = settings.paddle_length + int(np.ceil(settings.thickness)) + margin
        middle = radius * scale
        for y, x in ends.tolist():
            image = Image.new("L", (2 * middle + 1, 2 * middle + 1))
            line = [(middle, middle), (middle + x, middle + y)]
            width = round(settings.thickness * scale)
            ImageDraw.Draw(image).line(line, fill=255, width=width)
            blown.append(np.asarray(image))
        ink = _shrink(np.stack(blown).astype(np.float32), radius)
        contrasts = [settings.contour_contrast, settings.distractor_contrast]
        inks = np.stack([np.rint(ink * contrast * INK_SCALE) for contrast in contrasts])
        self.ink = inks.astype(np.int16)  # [2, S, W, W] of a contour, of a distractor

        disc = _disc(margin * scale)[None]
        swollen = ndimage.grey_dilation(np.stack(blown), footprint=disc)
        mask = np.rint(_shrink(swollen, radius) * 255).astype(np.uint8)
        mask = mask.reshape(len(ends), -1)
        order = np.argsort(mask == 0, axis=1, kind="stable")
        order = order[:, : (mask > 0).sum(axis=1).max()]
        order = np.where(np.take_along_axis(mask, order, 1) > 0, order, order[:, :1])
        y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
        # [S, Q] from the anchor to the pixels that a paddle occupies, and how far they
        # are, 1..255; rows repeat a pixel of theirs.
        self.pixels = (y * self.width + x).ravel()[order]
        self.mask = np.take_along_axis(mask, order, 1)

    def _draw_marker(self) -> None:
        """Draws a disc; its centre is the first of the middle's blown-up pixels."""
        scale = ANTIALIAS
        size = self.settings.marker_radius
        radius = int(np.ceil(size)) + 3
        side = np.arange((2 * radius + 1) * scale) - radius * scale
        disc = np.where(side[:, None] ** 2 + side**2 <= (size * scale) ** 2, 255, 0)
        ink = _shrink(disc[None].astype(np.uint8), radius)[0]
        self.marker = np.rint(ink * INK_SCALE).astype(np.int16)  # [W', W']


@functools.lru_cache(maxsize=8)
def get_paddles(settings: Settings, margin: int) -> Paddles:
    """Makes the tables, once; it takes a fraction of a second."""
    return Paddles(settings, margin)
