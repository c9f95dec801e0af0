"""The paddles of Pathfinder: what they look like and how one follows another.

A contour is a chain of paddles, short antialiased lines that stand on whole pixels. A
paddle is thus one of a few hundred stamps (360 directions for the first of a chain; for
the others one for each pixel of a small ring around a pivot), and what growing and
drawing ask about it is a row of a table, made here once. All tables are integers, so
that a picture does not depend on the machine.

Lengths are pixels, coordinates (y, x), angles radians with direction (sin, cos), and
positions flat indices into a canvas that is `pad` pixels larger on each side.
"""

import functools
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from lra_tasks.pathfinder_settings import Settings

# First paddles point along whole degrees.
NUM_DIRECTIONS = 360
# The weight of going straight ahead.
TURN_SCALE = 4096
# It scales the ink of all paddles and markers, which is stored in integers.
INK_SCALE = 4096
# Paddles are drawn this many times larger, then shrunk.
ANTIALIAS = 2
# The two tables of `Paddles.ink`.
CONTOUR_INK = 0
DISTRACTOR_INK = 1


def _displacements(
    angle: np.ndarray,
    distance: float,
    rounding: Callable[[np.ndarray], np.ndarray] = np.rint,
) -> np.ndarray:
    """Whole-pixel displacements [..., 2] by a distance at angles [...]."""
    exact = distance * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    # Without the last digits 2.5 is 2.5 on every machine.
    return rounding(exact.round(9)).astype(np.int64)


def _disc(radius: int) -> np.ndarray:
    """Which pixels [2 radius + 1, 2 radius + 1] are within a radius of the middle."""
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return y**2 + x**2 <= radius**2


def _shrink(enlarged: np.ndarray, radius: int) -> np.ndarray:
    """Shrinks pictures with a Lanczos filter.

    Args:
      enlarged: n pictures of any size, in 0..255.
      radius: that of the result.

    Returns:
      The pictures float64 [n, 2 radius + 1, 2 radius + 1], in 0..1.
    """
    size = (2 * radius + 1, 2 * radius + 1)
    pictures = []
    for picture in enlarged:
        image = Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS)
        pictures.append(np.asarray(image))
    return np.stack(pictures).astype(np.float64) / 255


def _rank_followers(
    angle: np.ndarray, continuity: float
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks the paddles that may follow each paddle, those straight ahead first.

    Args:
      angle: the angle of each paddle, radians [S].
      continuity: a larger one gives less weight to paddles that bend the contour.

    Returns:
      The followers int64 [S, C] and their weights int64 [S, C]. A paddle with fewer
      followers than another has some of weight 0.
    """
    # A first paddle follows none, so the followers are the paddles behind the first.
    follower_angle = angle[NUM_DIRECTIONS:]
    difference = np.abs(angle[:, None] - follower_angle)  # [S, S - NUM_DIRECTIONS]
    # Two directions differ by half a turn at most.
    bend = np.minimum(difference, 2 * np.pi - difference) * continuity
    weight = np.cos(np.minimum(bend, np.pi / 2)).clip(0) ** 2
    weight = np.rint(weight * TURN_SCALE).astype(np.int64)

    most_followers = (weight > 0).sum(axis=1).max()  # C
    largest_first = np.argsort(-weight, axis=1, kind="stable")
    order = largest_first[:, :most_followers]
    return NUM_DIRECTIONS + order, np.take_along_axis(weight, order, axis=1)


class Paddles:
    """Tables of all paddles of one data set and margin.

    Paddles 0..359 are the first of a chain. They are anchored at their tail and point
    along their degree. The others are anchored at their head, one for each place of the
    head on the ring around a pivot.

    Letters: S paddles, C paddles that may follow one, K pixels within the margin of a
    pixel, Q pixels that the largest paddle occupies, W and W' the sides of the pictures
    of a paddle and of a marker.

    Attributes:
      settings: the settings of the data set.
      pad: how many pixels the canvas has on each side of the picture.
      width: the side of the canvas.
      step: int64 [S], from the pivot of a paddle to the next pivot.
      ring: int64 [S], from the pivot of a paddle to its anchor.
      bearing: int64 [360], from the first contour's tail to the second's.
      disc: int64 [K], from a pixel to all within the margin.
      choices: int64 [S, C], the paddles that may follow.
      turn: int64 [S, C], the weights of the choices.
      pixels: int64 [S, Q], from the anchor to the pixels that a paddle occupies; a
        shorter row repeats its first pixel.
      mask: uint8 [S, Q], how much of each pixel is occupied, 1..255.
      ink: int16 [2, S, W, W], the pictures of a paddle of a contour (CONTOUR_INK) and
        of a distractor (DISTRACTOR_INK), with the anchor in the middle.
      marker: int16 [W', W'], the picture of a marker.
    """

    def __init__(self, settings: Settings, margin: int):
        self.settings = settings
        length = settings.paddle_length
        self.pad = length + 2 * margin + int(np.ceil(settings.thickness)) + 1
        self.width = settings.resolution + 2 * self.pad
        strides = np.array([self.width, 1])

        # The ring has an angle for each pixel of its circumference.
        radius = length + margin
        circumference = int(np.ceil(2 * np.pi * radius))
        ring_angle = np.arange(circumference) / radius
        # Heads are rounded down and pivots up, which is how the public generator does
        # it and what its share of axis-parallel (brightest) paddles comes from.
        heads = np.unique(_displacements(ring_angle, radius, np.floor), axis=0)
        degrees = np.deg2rad(np.arange(NUM_DIRECTIONS) - NUM_DIRECTIONS // 2)
        angle = np.concatenate([degrees, np.arctan2(heads[:, 0], heads[:, 1])])

        anchors = np.concatenate([_displacements(degrees, margin), heads])
        self.step = _displacements(angle, length + 2 * margin, np.ceil) @ strides
        self.ring = anchors @ strides
        self.bearing = _displacements(degrees, settings.seed_distance) @ strides
        self.disc = (np.argwhere(_disc(margin)) - margin) @ strides
        self.choices, self.turn = _rank_followers(angle, settings.continuity)

        # A line is drawn from the anchor: forwards from a tail, backwards from a head.
        is_first = np.arange(len(angle))[:, None] < NUM_DIRECTIONS
        direction = np.where(is_first, 1, -1)
        ends = direction * _displacements(angle, length * ANTIALIAS)
        self._draw_paddles(ends, margin)
        self._draw_marker()

    def position(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Returns the canvas positions of picture coordinates."""
        return (y + self.pad) * self.width + x + self.pad

    def _draw_paddles(self, ends: np.ndarray, margin: int) -> None:
        """Draws the ink of all paddles, and what they occupy.

        Args:
          ends: from the anchors to the other ends, [S, 2], ANTIALIAS times enlarged.
          margin: the free space around a paddle.
        """
        settings = self.settings
        radius = settings.paddle_length + int(np.ceil(settings.thickness)) + margin
        middle = radius * ANTIALIAS
        line_width = round(settings.thickness * ANTIALIAS)
        pictures = []
        for y, x in ends.tolist():
            image = Image.new("L", (2 * middle + 1, 2 * middle + 1))
            line = [(middle, middle), (middle + x, middle + y)]
            ImageDraw.Draw(image).line(line, fill=255, width=line_width)
            pictures.append(np.asarray(image))
        enlarged = np.stack(pictures)

        ink = _shrink(enlarged.astype(np.float32), radius)
        contour_ink = np.rint(ink * settings.contour_contrast * INK_SCALE)
        distractor_ink = np.rint(ink * settings.distractor_contrast * INK_SCALE)
        self.ink = np.stack([contour_ink, distractor_ink]).astype(np.int16)

        footprint = _disc(margin * ANTIALIAS)[None]
        with_margin = ndimage.grey_dilation(enlarged, footprint=footprint)
        mask = np.rint(_shrink(with_margin, radius) * 255).astype(np.uint8)
        self._list_pixels(mask.reshape(len(ends), -1), radius)

    def _list_pixels(self, mask: np.ndarray, radius: int) -> None:
        """Lists the occupied pixels of masks [S, W²], and the masks' values there."""
        most_pixels = (mask > 0).sum(axis=1).max()  # Q
        # False is sorted before True: the occupied pixels come first, in their order.
        occupied_first = np.argsort(mask == 0, axis=1, kind="stable")
        order = occupied_first[:, :most_pixels]
        # A row with fewer occupied pixels repeats its first one.
        is_occupied = np.take_along_axis(mask, order, axis=1) > 0
        order = np.where(is_occupied, order, order[:, :1])

        # From the middle of a picture, which is the anchor, to each of its pixels.
        y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
        displacement = (y * self.width + x).ravel()
        self.pixels = displacement[order]
        self.mask = np.take_along_axis(mask, order, axis=1)

    def _draw_marker(self) -> None:
        """Draws a disc; its centre is the first of the middle's enlarged pixels."""
        size = self.settings.marker_radius
        radius = int(np.ceil(size)) + 3
        side = np.arange((2 * radius + 1) * ANTIALIAS) - radius * ANTIALIAS
        is_inside = side[:, None] ** 2 + side**2 <= (size * ANTIALIAS) ** 2
        enlarged = np.where(is_inside, 255, 0).astype(np.uint8)
        ink = _shrink(enlarged[None], radius)[0]
        self.marker = np.rint(ink * INK_SCALE).astype(np.int16)


@functools.lru_cache(maxsize=8)
def get_paddles(settings: Settings, margin: int) -> Paddles:
    """Makes the tables, once; it takes a fraction of a second."""
    return Paddles(settings, margin)
