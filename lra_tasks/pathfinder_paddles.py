"""The paddles of Pathfinder: what they look like and how one follows another.

A contour is a chain of paddles, short antialiased lines that stand on whole
pixels. A paddle is thus one of a few hundred stamps (360 directions for the first
of a chain; one for each pixel of a small ring around a pivot for all others), and
everything that growing and drawing ask about it is a row in a table, made here
once. All tables are integers, so that a picture does not depend on the machine.

Lengths are pixels, coordinates (y, x), angles radians with direction
(sin, cos). Positions are flat indices into a canvas that is `pad` pixels larger
than the picture on each side.
"""

import dataclasses
import functools

import numpy as np
from PIL import Image, ImageDraw

DIFFICULTIES = {"easy": 6, "intermediate": 9, "hard": 14}  # contour_length
NUM_DIRECTIONS = 360  # first paddles point along whole degrees
OCCUPIED = 76  # a mask of more than 0.3 x 255 counts as occupied by a first paddle
OVERLAP = 459  # 1.8 x 255: two masks whose sum reaches this overlap
TURN_SCALE = 4096  # the weight of going straight ahead
INK_SCALE = 4096  # the ink of a marker
ANTIALIAS = 2  # paddles are drawn so many times larger and shrunk


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that distinguishes one Pathfinder data set from another."""

    resolution: int
    contour_length: int  # paddles
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]  # free space around paddles; one is drawn per image
    seed_distance: int
    marker_radius: float
    continuity: float
    contour_contrast: float
    distractor_contrast: float
    distractor_paddles: int  # of all distractors
    distractor_tries: int  # random places; a distractor that fails is left out

    @property
    def distractor_length(self) -> int:
        return self.contour_length // 3

    @property
    def num_distractors(self) -> int:
        return self.distractor_paddles // self.distractor_length


# Long Range Arena's parameters, the last ten of Settings. With one try at 32 pixels 1.2
# of 5 distractors appear, as in the public pictures.
_TABLE = {
    32: (2, 0.5, (1,), 7, 1.5, 1.0, 1.5, 2.0, 20, 1),
    64: (5, 1.0, (1,), 12, 2.5, 1.8, 0.8, 0.8, 22, 5),
    128: (5, 1.5, (2, 3), 20, 3.0, 1.8, 0.9, 0.9, 35, 5),
}
RESOLUTIONS = tuple(_TABLE)


def get_settings(resolution: int, difficulty: str) -> Settings:
    """The settings of a data set, one of RESOLUTIONS and of DIFFICULTIES."""
    return Settings(resolution, DIFFICULTIES[difficulty], *_TABLE[resolution])


@dataclasses.dataclass(frozen=True)
class Paddles:
    """Tables of all S paddles of one data set and margin, P ring pixels among them.

    Paddles 0..359 are anchored at their tail and point along their degree; the
    others are anchored at their head, one for each place of the head on the ring.
    """

    settings: Settings
    margin: int
    pad: int
    width: int  # of the canvas
    step: np.ndarray  # [S] from the pivot to the next pivot
    ring: np.ndarray  # [S] from the pivot to the anchor
    bearing: np.ndarray  # [360] from the first contour's tail to the second's
    choices: np.ndarray  # [S, C] the paddles that may follow this one
    turn: np.ndarray  # [S, C] and their weights
    pixels: np.ndarray  # [S, Q] from the anchor to the pixels that a paddle occupies
    mask: np.ndarray  # [S, Q] and how far, 1..255; rows repeat a pixel of theirs
    disc: np.ndarray  # [K] from a pixel to all within the margin
    ink: np.ndarray  # [2, S, W, W] brightness as part of a contour, of a distractor
    marker: np.ndarray  # [W', W']

    def position(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Picture coordinates to canvas positions."""
        return (y + self.pad) * self.width + x + self.pad


def along(angle: np.ndarray, distance: float, rounding=np.rint) -> np.ndarray:
    """Whole-pixel displacements [..., 2] by a distance at angles."""
    exact = distance * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return rounding(exact.round(9)).astype(np.int64)  # 2.5 is 2.5 on every machine


def _disc(radius: int) -> np.ndarray:
    """Displacements [K, 2] of the pixels within a radius."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    inside = y**2 + x**2 <= radius**2
    return np.stack([y[inside], x[inside]], axis=-1)


def _dilate(windows: np.ndarray, radius: int) -> np.ndarray:
    """Grey dilation of [S, W, W] by a disc; the windows grow by the radius."""
    padded = np.pad(windows, [(0, 0), (2 * radius,) * 2, (2 * radius,) * 2])
    size = windows.shape[1] + 2 * radius
    shifted = (
        padded[:, radius + y :, radius + x :][:, :size, :size] for y, x in _disc(radius)
    )
    return functools.reduce(np.maximum, shifted)


def _shrink(blown: np.ndarray, radius: int) -> np.ndarray:
    """Lanczos of [S, W, W] to [S, 2 radius + 1, 2 radius + 1], in 0..1."""
    size = 2 * radius + 1, 2 * radius + 1
    images = (Image.fromarray(window) for window in blown)
    small = [image.resize(size, Image.Resampling.LANCZOS) for image in images]
    return np.stack([np.asarray(image) for image in small]).astype(np.float64) / 255


def _draw_lines(ends: np.ndarray, radius: int, width: int) -> np.ndarray:
    """Lines from the middle of windows of that radius to ends [S, 2]."""
    lines = []
    for y, x in ends.tolist():
        image = Image.new("L", (2 * radius + 1, 2 * radius + 1))
        line = [(radius, radius), (radius + x, radius + y)]
        ImageDraw.Draw(image).line(line, fill=255, width=width)
        lines.append(np.asarray(image))
    return np.stack(lines)


def _stamps(settings: Settings, ends: np.ndarray, margin: int, width: int) -> dict:
    """The picture and the mask of paddles from an anchor to blown-up ends [S, 2]."""
    scale, thickness = ANTIALIAS, settings.thickness
    radius = settings.paddle_length + int(np.ceil(thickness)) + margin
    blown = _draw_lines(ends, radius * scale, round(thickness * scale))
    ink = _shrink(blown.astype(np.float32), radius)
    contrasts = [settings.contour_contrast, settings.distractor_contrast]
    inks = np.stack([np.rint(ink * contrast * INK_SCALE) for contrast in contrasts])
    inner = slice(margin * scale, -margin * scale)
    swollen = _dilate(blown, margin * scale)[:, inner, inner]
    mask = np.rint(_shrink(swollen, radius) * 255).astype(np.uint8)
    mask = mask.reshape(len(ends), -1)
    order = np.argsort(mask == 0, axis=1, kind="stable")
    order = order[:, : (mask > 0).sum(axis=1).max()]
    order = np.where(np.take_along_axis(mask, order, 1) > 0, order, order[:, :1])
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return {
        "ink": inks.astype(np.int16),
        "pixels": (y * width + x).ravel()[order],
        "mask": np.take_along_axis(mask, order, 1),
    }


def _marker(settings: Settings) -> np.ndarray:
    """A disc, [W, W]. Its centre is the first of the blown-up pixels of the middle."""
    scale = ANTIALIAS
    radius = int(np.ceil(settings.marker_radius)) + 3
    side = np.arange((2 * radius + 1) * scale) - radius * scale
    squared_distance = side[:, None] ** 2 + side**2
    disc = np.where(squared_distance <= (settings.marker_radius * scale) ** 2, 255, 0)
    ink = _shrink(disc[None].astype(np.uint8), radius)[0]
    return np.rint(ink * INK_SCALE).astype(np.int16)


@functools.lru_cache(maxsize=8)
def get_paddles(settings: Settings, margin: int) -> Paddles:
    """Makes the tables: a fraction of a second, once."""
    length, scale = settings.paddle_length, ANTIALIAS
    pad = length + 2 * margin + int(np.ceil(settings.thickness)) + 1
    width = settings.resolution + 2 * pad
    flat = np.array([width, 1])

    circumference = int(np.ceil(2 * np.pi * (length + margin)))  # one per pixel of arc
    arc = np.arange(circumference) / (length + margin)
    # Heads are rounded down and pivots up, which is how the public generator does it
    # and what its share of axis-parallel (brightest) paddles comes from.
    ring = np.unique(along(arc, length + margin, np.floor), axis=0)
    degrees = np.deg2rad(np.arange(NUM_DIRECTIONS) - NUM_DIRECTIONS // 2)
    angle = np.concatenate([degrees, np.arctan2(ring[:, 0], ring[:, 1])])
    is_first = np.arange(len(angle))[:, None] < NUM_DIRECTIONS
    ends = np.where(is_first, 1, -1) * along(angle, length * scale)

    delta = np.abs(angle[:, None] - angle[NUM_DIRECTIONS:])
    delta = np.minimum(delta, 2 * np.pi - delta) * settings.continuity
    weight = np.cos(np.minimum(delta, np.pi / 2)).clip(0) ** 2
    weight = np.rint(weight * TURN_SCALE).astype(np.int64)
    order = np.argsort(-weight, axis=1, kind="stable")
    order = order[:, : (weight > 0).sum(axis=1).max()]
    return Paddles(
        settings=settings,
        margin=margin,
        pad=pad,
        width=width,
        step=along(angle, length + 2 * margin, np.ceil) @ flat,
        ring=np.concatenate([along(degrees, margin), ring]) @ flat,
        bearing=along(degrees, settings.seed_distance) @ flat,
        choices=order + NUM_DIRECTIONS,
        turn=np.take_along_axis(weight, order, 1),
        disc=_disc(margin) @ flat,
        marker=_marker(settings),
        **_stamps(settings, ends, margin, width),
    )
