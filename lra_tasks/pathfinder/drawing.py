"""Draws Pathfinder pictures (Linsley et al. 2018) with Long Range Arena's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones. Picture i is a function of (seed, i) and the
settings alone, whatever the batch, the order and the number of processes.

From top to bottom: `Settings`, what distinguishes the data sets; `Streams`, random
numbers of many pictures at once; `Paddles`, what the paddles of a contour look like and
how one follows another; `Growth`, where the paddles of many pictures lie; `generate`,
which paints them.

Lengths are pixels, coordinates (y, x), angles radians with direction (sin, cos), and
positions flat indices into a canvas that is `pad` pixels larger on each side.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

# The number of paddles in a long contour.
DIFFICULTIES = {"easy": 6, "intermediate": 9, "hard": 14}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """All that distinguishes one Pathfinder data set from another.

    Attributes:
      resolution: the side of a picture.
      contour_length: the number of paddles in a long contour.
      paddle_length: the length of a paddle.
      thickness: the width of a paddle.
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
        """The number of paddles in a distractor."""
        return self.contour_length // 3

    @property
    def num_distractors(self) -> int:
        """The number of distractors, if all of them find a place."""
        return self.distractor_paddles // self.distractor_length


# The settings at the hard difficulty, by the resolution. With one try at 32 pixels 1.2
# of 5 distractors appear, as in the public pictures.
RESOLUTIONS = {
    32: Settings(
        resolution=32,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=2,
        thickness=0.5,
        margins=(1,),
        seed_distance=7,
        marker_radius=1.5,
        continuity=1.0,
        contour_contrast=1.5,
        distractor_contrast=2.0,
        distractor_paddles=20,
        distractor_tries=1,
    ),
    64: Settings(
        resolution=64,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=5,
        thickness=1.0,
        margins=(1,),
        seed_distance=12,
        marker_radius=2.5,
        continuity=1.8,
        contour_contrast=0.8,
        distractor_contrast=0.8,
        distractor_paddles=22,
        distractor_tries=5,
    ),
    128: Settings(
        resolution=128,
        contour_length=DIFFICULTIES["hard"],
        paddle_length=5,
        thickness=1.5,
        margins=(2, 3),
        seed_distance=20,
        marker_radius=3.0,
        continuity=1.8,
        contour_contrast=0.9,
        distractor_contrast=0.9,
        distractor_paddles=35,
        distractor_tries=5,
    ),
}


def get_settings(resolution: int, difficulty: str) -> Settings:
    """Returns the settings of one of RESOLUTIONS and one of DIFFICULTIES."""
    return dataclasses.replace(
        RESOLUTIONS[resolution], contour_length=DIFFICULTIES[difficulty]
    )


# SplitMix64's step from one state to the next (Steele et al. 2014).
GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclasses.dataclass
class Streams:
    """Random numbers, the k-th of a picture a function of seed, index and k alone.

    Attributes:
      state: the states of SplitMix64, uint64 [n].
    """

    state: np.ndarray

    @classmethod
    def from_seed(cls, seed: int, indices: np.ndarray, purpose: int) -> "Streams":
        """Makes the streams of pictures.

        Args:
          seed: the seed of the data set.
          indices: the numbers of the pictures, int64 [n].
          purpose: a number; each has a stream of its own.
        """
        start = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(purpose))
        return cls(_mix(start + indices.astype(np.uint64) * GAMMA))

    def restart(self, rows: np.ndarray, keys: np.ndarray, number: np.ndarray) -> None:
        """Goes to the beginning of other streams.

        Args:
          rows: the pictures whose streams they are, [r].
          keys: uint64 [r]; there are many streams under each key.
          number: which of these streams it is, int64 [r].
        """
        self.state[rows] = _mix(keys + (number + 1).astype(np.uint64) * GAMMA)

    def draw(self, rows: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
        """Draws an integer for each of the pictures `rows`.

        Args:
          rows: the pictures, [r].
          bound: up to 2**31, one for all or [r].

        Returns:
          int64 [r], uniform in [0, bound).
        """
        self.state[rows] += GAMMA
        bits = (_mix(self.state[rows]) >> np.uint64(32)).astype(np.int64)
        return (bits * bound) >> 32


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

    A contour is a chain of paddles, short antialiased lines that stand on whole pixels.
    A paddle is thus one of a few hundred stamps, and what growing and painting ask
    about it is a row of a table, made here once. All tables are integers, so that a
    picture does not depend on the machine.

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


# For a first paddle a mask of more than 0.3 x 255 is occupied.
OCCUPIED = 76
# Two masks whose sum reaches 1.8 x 255 overlap.
OVERLAP = 459
PADDLE_RETRIES = 2
# The border that no contour may enter.
PADDING = 1

# One slot of all pictures, or one of each.
Slot = int | np.ndarray


class Growth:
    """Grows the paddles of n pictures that share a margin; `__init__` does all of it.

    All pictures go through the same steps (first paddles, next paddle, start again when
    stuck), each at its own pace, in numpy gathers from the tables of `Paddles`. Beside
    each picture is a mask of occupied pixels, 0..255. A paddle enters it when the next
    one of its contour has been placed, since that one starts right at it; so the two
    contours, which grow in turn, may touch where both just arrived, as in the public
    pictures.

    A picture has slots for its paddles: those of contour 0, then those of contour 1,
    then those of each distractor.

    Letters: n pictures, r of them that take a step, S paddles in the tables, C paddles
    that may follow one.

    Attributes:
      paddles: the tables of the margin.
      streams: the random numbers of the pictures.
      rows: the numbers of all pictures, int64 [n].
      num_contour_slots: the number of slots for both contours.
      anchor: for each slot the canvas position of its paddle, int64 [n, slots].
      stamp: for each slot the row of its paddle in the tables, int64 [n, slots].
      has_distractor: which distractors found a place, bool [n, distractors].
      occupied: the masks, uint8 [n, width²].
    """

    def __init__(self, paddles: Paddles, streams: Streams):
        settings = paddles.settings
        num_pictures = len(streams.state)
        self.paddles = paddles
        self.streams = streams
        self.rows = np.arange(num_pictures)

        self.num_contour_slots = 2 * settings.contour_length
        num_distractor_slots = settings.num_distractors * settings.distractor_length
        num_slots = self.num_contour_slots + num_distractor_slots
        self.anchor = np.zeros((num_pictures, num_slots), np.int64)
        self.stamp = np.zeros((num_pictures, num_slots), np.int64)
        self.has_distractor = np.zeros((num_pictures, settings.num_distractors), bool)

        # No contour may enter the border, so its pixels are occupied from the start.
        border = paddles.pad + PADDING
        blank = np.full((paddles.width, paddles.width), 255, np.uint8)
        blank[border:-border, border:-border] = 0
        self._blank = blank.ravel()
        self.occupied = np.tile(self._blank, (num_pictures, 1))

        self._grow_contours()
        self._grow_distractors()

    def tips(self) -> np.ndarray:
        """Returns the canvas positions of both ends of both contours.

        Returns:
          int64 [n, 2, 2], first where contours 0 and 1 begin, then where they end.
        """
        length = self.paddles.settings.contour_length
        return self.anchor[:, [[0, length], [length - 1, 2 * length - 1]]]

    def _pixels(
        self, rows: np.ndarray, anchor: np.ndarray, stamp: np.ndarray
    ) -> np.ndarray:
        """Where the pixels of paddles [r] are in the flat array of all masks."""
        start = rows * self.paddles.width**2
        return (start + anchor)[:, None] + self.paddles.pixels[stamp]

    def _enter(self, rows: np.ndarray, slot: Slot) -> None:
        """Enters the paddles of slots [r] into the masks."""
        stamp = self.stamp[rows, slot]
        pixels = self._pixels(rows, self.anchor[rows, slot], stamp)
        occupied = self.occupied.reshape(-1)
        occupied[pixels] = np.maximum(occupied[pixels], self.paddles.mask[stamp])

    def _extend(self, rows: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Puts paddles behind those of slots [r] - 1; returns whether it did, [r].

        A paddle is drawn from those that may follow, by how straight it goes on and how
        free the pixels around its head are. One that overlaps others is drawn again.
        """
        paddles = self.paddles
        occupied = self.occupied.reshape(-1)
        last_stamp = self.stamp[rows, slot - 1]
        last_pivot = self.anchor[rows, slot - 1] - paddles.ring[last_stamp]
        pivot = last_pivot + paddles.step[last_stamp]

        choices = paddles.choices[last_stamp]  # [r, C]
        heads = pivot[:, None] + paddles.ring[choices]
        first_pixels = rows[:, None] * paddles.width**2
        surroundings = (first_pixels + heads)[:, :, None] + paddles.disc
        occupancy = occupied[surroundings].max(axis=2).astype(np.int64)
        weight = paddles.turn[last_stamp] * (255 - occupancy)
        cumulative = np.cumsum(weight, axis=1)

        is_placed = np.zeros(len(rows), bool)
        waiting = np.flatnonzero(cumulative[:, -1] > 0)
        for _ in range(1 + PADDLE_RETRIES):
            score = self.streams.draw(rows[waiting], cumulative[waiting, -1])
            choice = (cumulative[waiting] <= score[:, None]).sum(axis=1)
            anchor = heads[waiting, choice]
            stamp = choices[waiting, choice]
            pixels = self._pixels(rows[waiting], anchor, stamp)
            occupied_before = occupied[pixels].astype(np.int16)
            is_free = np.all(occupied_before + paddles.mask[stamp] < OVERLAP, axis=1)

            placed = waiting[is_free]
            self._enter(rows[placed], slot[placed] - 1)
            self.anchor[rows[placed], slot[placed]] = anchor[is_free]
            self.stamp[rows[placed], slot[placed]] = stamp[is_free]
            is_placed[placed] = True
            waiting = waiting[~is_free]
        return is_placed

    def _seed_contours(self, rows: np.ndarray) -> None:
        """Clears pictures and puts the first paddles of both contours."""
        paddles = self.paddles
        streams = self.streams
        settings = paddles.settings
        self.occupied[rows] = self._blank

        border = 2 * settings.seed_distance
        bound = settings.resolution - 2 * border
        y = border + streams.draw(rows, bound)
        x = border + streams.draw(rows, bound)
        tail = paddles.position(y, x)
        for slot in (0, settings.contour_length):
            self.anchor[rows, slot] = tail
            self.stamp[rows, slot] = streams.draw(rows, NUM_DIRECTIONS)
            # After contour 1 nothing begins here, yet the number is drawn: without it
            # all that are drawn later would be others.
            tail = tail + paddles.bearing[streams.draw(rows, NUM_DIRECTIONS)]

    def _grow_contours(self) -> None:
        """Grows both contours of all pictures, paddle by paddle.

        The contours take turns: an even number of paddles means contour 0. A picture
        starts again where a contour is stuck, or where two tips coincide. Each attempt
        has a stream of its own.
        """
        length = self.paddles.settings.contour_length
        keys = self.streams.state.copy()
        attempt = np.zeros(len(self.rows), np.int64)
        num_placed = np.zeros(len(self.rows), np.int64)
        active = self.rows
        while active.size:
            is_empty = num_placed[active] == 0
            empty = active[is_empty]
            self.streams.restart(empty, keys[empty], attempt[empty])
            self._seed_contours(empty)
            num_placed[empty] = 2

            growing = active[~is_empty]
            contour = num_placed[growing] % 2
            place = num_placed[growing] // 2
            is_placed = self._extend(growing, contour * length + place)
            stuck = growing[~is_placed]
            extended = growing[is_placed]
            num_placed[extended] += 1

            # Where two tips coincide, a marker there would be on both contours.
            full = extended[num_placed[extended] == 2 * length]
            tips = np.sort(self.tips()[full].reshape(-1, 4), axis=1)
            has_shared_tip = (tips[:, 1:] == tips[:, :-1]).any(axis=1)
            restarted = np.concatenate([stuck, full[has_shared_tip]])
            num_placed[restarted] = 0
            attempt[restarted] += 1
            active = active[num_placed[active] < 2 * length]

        # The last paddles have no next one that would enter them.
        self._enter(self.rows, length - 1)
        self._enter(self.rows, 2 * length - 1)

    def _seed_distractors(self, rows: np.ndarray, slot: Slot) -> np.ndarray:
        """Puts first paddles at uniform places; returns which were free, bool [r]."""
        paddles = self.paddles
        resolution = paddles.settings.resolution
        pixel = self.streams.draw(rows, resolution**2)
        stamp = self.streams.draw(rows, NUM_DIRECTIONS)
        y, x = np.divmod(pixel, resolution)
        tail = paddles.position(y, x)
        self.anchor[rows, slot] = tail
        self.stamp[rows, slot] = stamp

        # Only the pixels count that the paddle and its margin cover entirely.
        pixels = self._pixels(rows, tail, stamp)
        is_free = self.occupied.reshape(-1)[pixels] <= OCCUPIED
        is_partly_covered = paddles.mask[stamp] < 255
        return np.all(is_free | is_partly_covered, axis=1)

    def _grow_distractors(self) -> None:
        """Grows the distractors of all pictures, one after the other.

        A distractor has a number of tries; if it is stuck in all, it is left out.
        """
        settings = self.paddles.settings
        length = settings.distractor_length
        # The state of each picture: the number of the distractor that grows in it, how
        # many tries of this distractor have failed, and how many paddles it has.
        distractor = np.zeros(len(self.rows), np.int64)
        num_failed = np.zeros(len(self.rows), np.int64)
        num_placed = np.zeros(len(self.rows), np.int64)
        # When a distractor gets stuck, the mask goes back to what it was before.
        occupied_before = self.occupied.copy()
        active = self.rows
        while active.size:
            first_slot = self.num_contour_slots + distractor[active] * length
            slot = first_slot + num_placed[active]
            is_first = num_placed[active] == 0
            seeded = active[is_first]
            growing = active[~is_first]
            is_placed = np.empty(len(active), bool)
            is_placed[is_first] = self._seed_distractors(seeded, slot[is_first])
            is_placed[~is_first] = self._extend(growing, slot[~is_first])
            num_placed[active[is_placed]] += 1

            stuck = active[~is_placed]
            self.occupied[stuck] = occupied_before[stuck]
            num_placed[stuck] = 0
            num_failed[stuck] += 1

            # The last paddle has no next one that would enter it.
            is_full = num_placed[active] == length
            full = active[is_full]
            self._enter(full, slot[is_full])
            occupied_before[full] = self.occupied[full]
            self.has_distractor[full, distractor[full]] = True

            # The next distractor begins where one is full or given up.
            given_up = stuck[num_failed[stuck] == settings.distractor_tries]
            finished = np.concatenate([full, given_up])
            distractor[finished] += 1
            num_failed[finished] = 0
            num_placed[finished] = 0
            active = active[distractor[active] < settings.num_distractors]


# The streams of a seed: one grows the pictures, the other decides the labels.
_GROWTH_STREAM = 0
_LABEL_STREAM = 1


def generate(
    seed: int, indices: np.ndarray, *, resolution: int = 32, difficulty: str = "hard"
) -> tuple[np.ndarray, np.ndarray]:
    """Draws pictures.

    Args:
      seed: the seed of the data set.
      indices: the numbers of the pictures `[n]`, in any order.
      resolution: the side of a picture, one of RESOLUTIONS.
      difficulty: one of DIFFICULTIES.

    Returns:
      Images uint8 `[n, R, R]` and labels int64 `[n]`.
    """
    settings = get_settings(resolution, difficulty)
    indices = np.asarray(indices, np.int64)
    all_rows = np.arange(len(indices))
    images = np.empty((len(indices), resolution, resolution), np.uint8)

    # Pictures 2j and 2j + 1 share a coin, so that one of them gets label 1.
    coins = Streams.from_seed(seed, indices // 2, _LABEL_STREAM)
    labels = coins.draw(all_rows, 2) ^ (indices % 2)

    streams = Streams.from_seed(seed, indices, _GROWTH_STREAM)
    margin_numbers = streams.draw(all_rows, len(settings.margins))
    first_contours = streams.draw(all_rows, 2)
    for number, margin in enumerate(settings.margins):
        rows = np.flatnonzero(margin_numbers == number)
        growth = Growth(get_paddles(settings, margin), Streams(streams.state[rows]))
        # One marker is where a contour begins; the other where it, or the other, ends.
        first_contour = first_contours[rows]
        second_contour = first_contour ^ (1 - labels[rows])
        tips = growth.tips()
        first_marker = tips[growth.rows, 0, first_contour]
        second_marker = tips[growth.rows, 1, second_contour]
        markers = np.stack([first_marker, second_marker], axis=1)
        images[rows] = _paint(growth, markers)
    return images, labels


def _paint(growth: Growth, markers: np.ndarray) -> np.ndarray:
    """Paints the paddles that have grown, and the markers.

    Args:
      growth: the paddles of n pictures.
      markers: the canvas positions of both markers, [n, 2].

    Returns:
      Images uint8 [n, R, R]; the brightest pixel of each is 255.
    """
    paddles = growth.paddles
    num_pictures, num_slots = growth.anchor.shape
    length = paddles.settings.distractor_length
    canvas = np.zeros((num_pictures, paddles.width**2), np.int16)
    for slot in range(num_slots):
        if slot < growth.num_contour_slots:
            inks = paddles.ink[CONTOUR_INK]
            rows = growth.rows
        else:
            inks = paddles.ink[DISTRACTOR_INK]
            distractor = (slot - growth.num_contour_slots) // length
            rows = np.flatnonzero(growth.has_distractor[:, distractor])
        _add_ink(
            canvas,
            width=paddles.width,
            rows=rows,
            position=growth.anchor[rows, slot],
            ink=inks[growth.stamp[rows, slot]],
        )
    for position in markers.T:
        _add_ink(
            canvas,
            width=paddles.width,
            rows=growth.rows,
            position=position,
            ink=np.broadcast_to(paddles.marker, (num_pictures, *paddles.marker.shape)),
        )

    inner = slice(paddles.pad, paddles.width - paddles.pad)
    pictures = canvas.reshape(num_pictures, paddles.width, paddles.width)
    pictures = pictures[:, inner, inner].astype(np.int32)
    brightest = pictures.max(axis=(1, 2), keepdims=True)
    return (pictures * 255 // brightest).astype(np.uint8)


def _add_ink(
    canvas: np.ndarray,
    *,
    width: int,
    rows: np.ndarray,
    position: np.ndarray,
    ink: np.ndarray,
) -> None:
    """Adds ink to canvases; where there is some already, the larger one stays.

    Args:
      canvas: all canvases, [n, width²].
      width: the side of a canvas.
      rows: the canvases that get ink, [r].
      position: where the middle of the ink goes, [r].
      ink: [r, W, W], of odd W.
    """
    radius = ink.shape[1] // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    pixels = position[:, None] + (y * width + x).ravel()
    index = (rows[:, None], pixels)
    canvas[index] = np.maximum(canvas[index], ink.reshape(-1, y.size))
