"""Generates Pathfinder pictures (Linsley et al. 2018) with LRA's parameters.

A picture holds two long dashed contours, several short ones as distractors and two
round markers; its label is 1 when both markers sit on the ends of one contour, and
0 when they sit on ends of different ones. Picture i is a function of (seed, i) and the
settings alone, whatever the batch, the order and the number of processes.

The pictures of a batch go through the same steps (first paddles, next paddle, start
again when stuck), each at its own pace, in numpy gathers from `pathfinder_paddles`.
Beside each lies a mask of occupied pixels, 0..255. A paddle enters it when the next one
of its contour has been placed, since that one starts right at it; so the two contours,
which grow in turn, may touch where both just arrived, as in the public pictures.
"""

import dataclasses

import numpy as np

from lra_tasks.pathfinder_paddles import NUM_DIRECTIONS, Paddles, get_paddles
from lra_tasks.pathfinder_settings import get_settings

# For a first paddle a mask of more than 0.3 x 255 is occupied.
OCCUPIED = 76
# Two masks whose sum reaches 1.8 x 255 overlap.
OVERLAP = 459
PADDLE_RETRIES = 2
# The border that no contour may enter.
PADDING = 1

Slot = int | np.ndarray  # one slot of all pictures, or one of each

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
# The streams of a seed: one grows the pictures, the other decides the labels.
_GROWTH_STREAM = 0
_LABEL_STREAM = 1


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclasses.dataclass
class Streams:
    """Random numbers, the k-th of a picture a function of seed, index and k alone."""

    state: np.ndarray  # uint64 [n], of SplitMix64

    @classmethod
    def of(
        cls, seed: int, indices: np.ndarray, kind: int = _GROWTH_STREAM
    ) -> "Streams":
        start = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(kind))
        return cls(_mix(start + indices.astype(np.uint64) * _GAMMA))

    def restart(self, rows: np.ndarray, keys: np.ndarray, number: np.ndarray) -> None:
        """Goes to the beginning of a numbered stream, one of many under each key."""
        self.state[rows] = _mix(keys + (number + 1).astype(np.uint64) * _GAMMA)

    def below(self, rows: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
        """One integer uniform in [0, bound) per row, bound up to 2**31."""
        self.state[rows] += _GAMMA
        bits = (_mix(self.state[rows]) >> np.uint64(32)).astype(np.int64)
        return (bits * bound) >> 32


class Growth:
    """The paddles of n pictures of one margin, which its construction grows.

    A picture has slots for its paddles: contour 0, contour 1, then the distractors.
    """

    def __init__(self, paddles: Paddles, streams: Streams):
        self.paddles, self.streams = paddles, streams
        p, settings, n = paddles, paddles.settings, len(streams.state)
        self.rows = np.arange(n)
        self.contour_slots = 2 * settings.contour_length
        slots = settings.num_distractors * settings.distractor_length
        # The canvas position and the table row of every paddle.
        self.anchor = np.zeros((n, self.contour_slots + slots), np.int64)
        self.stamp = np.zeros_like(self.anchor)
        self.has_distractor = np.zeros((n, settings.num_distractors), bool)
        blank = np.full((p.width, p.width), 255, np.uint8)
        border = p.pad + PADDING
        blank[border : p.width - border, border : p.width - border] = 0
        self.blank = blank.ravel()
        self.occupied = np.tile(self.blank, (n, 1))
        self._grow_contours()
        self._grow_distractors()

    def tips(self) -> np.ndarray:
        """Canvas positions [n, 2, 2] of where the two contours begin, then end."""
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
        """Puts paddles after those of slots [r] - 1; returns the success [r]."""
        p = self.paddles
        occupied = self.occupied.reshape(-1)
        last = self.stamp[rows, slot - 1]
        pivot = self.anchor[rows, slot - 1] - p.ring[last] + p.step[last]
        choices = p.choices[last]  # [r, C]
        heads = pivot[:, None] + p.ring[choices]
        discs = (rows[:, None] * p.width**2 + heads)[:, :, None] + p.disc
        dilated = occupied[discs].max(axis=2).astype(np.int64)
        cumulative = np.cumsum(p.turn[last] * (255 - dilated), axis=1)

        success = np.zeros(len(rows), bool)
        todo = np.flatnonzero(cumulative[:, -1] > 0)
        for _ in range(1 + PADDLE_RETRIES):
            draw = self.streams.below(rows[todo], cumulative[todo, -1])
            pick = (cumulative[todo] <= draw[:, None]).sum(axis=1)
            anchor = heads[todo, pick]
            stamp = choices[todo, pick]
            pixels = self._pixels(rows[todo], anchor, stamp)
            before = occupied[pixels].astype(np.int16)
            free = np.all(before + p.mask[stamp] < OVERLAP, axis=1)
            done = todo[free]
            self._enter(rows[done], slot[done] - 1)
            self.anchor[rows[done], slot[done]] = anchor[free]
            self.stamp[rows[done], slot[done]] = stamp[free]
            success[done] = True
            todo = todo[~free]
        return success

    def _seed_contours(self, rows: np.ndarray) -> None:
        """Clears pictures and puts the first paddle of both contours."""
        p = self.paddles
        draw = self.streams.below
        distance = p.settings.seed_distance
        length = p.settings.contour_length
        self.occupied[rows] = self.blank
        room = p.settings.resolution - 4 * distance
        y, x = (2 * distance + draw(rows, room) for _ in range(2))
        tail = p.position(y, x)
        for slot in (0, length):
            self.anchor[rows, slot] = tail
            self.stamp[rows, slot] = draw(rows, NUM_DIRECTIONS)
            tail = tail + p.bearing[draw(rows, NUM_DIRECTIONS)]

    def _grow_contours(self) -> None:
        """Paddle by paddle, in turn; a picture with a stuck contour starts again.

        Each attempt has a stream of its own.
        """
        length = self.paddles.settings.contour_length
        keys, attempt = self.streams.state.copy(), np.zeros(len(self.rows), np.int64)
        count = np.zeros(len(self.rows), np.int64)  # paddles of both contours
        active = self.rows
        while active.size:
            empty = count[active] == 0
            fresh, growing = active[empty], active[~empty]
            self.streams.restart(fresh, keys[fresh], attempt[fresh])
            self._seed_contours(fresh)
            count[fresh] = 2
            turn, number = count[growing] % 2, count[growing] // 2
            success = self._extend(growing, turn * length + number)
            stuck, growing = growing[~success], growing[success]
            count[growing] += 1

            done = growing[count[growing] == 2 * length]
            tips = np.sort(self.tips()[done].reshape(-1, 4), axis=1)
            shared = done[(tips[:, 1:] == tips[:, :-1]).any(axis=1)]
            again = np.concatenate([stuck, shared])
            count[again] = 0  # a marker on a shared tip is on both contours
            attempt[again] += 1
            active = active[count[active] < 2 * length]
        for slot in (length - 1, 2 * length - 1):
            self._enter(self.rows, slot)

    def _seed_distractors(self, rows: np.ndarray, slot: Slot) -> np.ndarray:
        """Puts first paddles at uniform places; returns which of these were free."""
        p = self.paddles
        resolution = p.settings.resolution
        place = self.streams.below(rows, resolution**2)
        stamp = self.streams.below(rows, NUM_DIRECTIONS)
        tail = p.position(*np.divmod(place, resolution))
        self.anchor[rows, slot] = tail
        self.stamp[rows, slot] = stamp
        before = self.occupied.reshape(-1)[self._pixels(rows, tail, stamp)]
        return np.all((before <= OCCUPIED) | (p.mask[stamp] < 255), axis=1)

    def _grow_distractors(self) -> None:
        """One after the other; each has a number of tries, then it is left out."""
        settings = self.paddles.settings
        length = settings.distractor_length
        before = self.occupied.copy()  # what to go back to when one gets stuck
        which, tries, count = np.zeros((3, len(self.rows)), np.int64)
        active = self.rows
        while active.size:
            slot = self.contour_slots + which[active] * length + count[active]
            empty = count[active] == 0
            success = np.empty(len(active), bool)
            success[empty] = self._seed_distractors(active[empty], slot[empty])
            success[~empty] = self._extend(active[~empty], slot[~empty])
            bad = active[~success]
            self.occupied[bad] = before[bad]
            count[bad] = 0
            tries[bad] += 1
            count[active[success]] += 1

            full = count[active] == length
            whole = active[full]
            self._enter(whole, slot[full])
            before[whole] = self.occupied[whole]
            self.has_distractor[whole, which[whole]] = True
            over = np.concatenate([whole, bad[tries[bad] == settings.distractor_tries]])
            which[over] += 1
            tries[over] = count[over] = 0
            active = active[which[active] < settings.num_distractors]


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
    everyone = np.arange(len(indices))
    images = np.empty((len(indices), resolution, resolution), np.uint8)

    # Pictures 2j and 2j + 1 share a coin, so that one of them gets label 1.
    coins = Streams.of(seed, indices // 2, _LABEL_STREAM)
    labels = coins.below(everyone, 2) ^ (indices % 2)

    streams = Streams.of(seed, indices)
    margins = np.array(settings.margins)[streams.below(everyone, len(settings.margins))]
    first_contour = streams.below(everyone, 2)
    for margin in settings.margins:
        rows = np.flatnonzero(margins == margin)
        growth = Growth(get_paddles(settings, margin), Streams(streams.state[rows]))
        # One marker is where a contour begins; the other where it, or the other, ends.
        begin = first_contour[rows]
        end = begin ^ (1 - labels[rows])
        tips = growth.tips()
        markers = [tips[growth.rows, 0, begin], tips[growth.rows, 1, end]]
        images[rows] = _paint(growth, np.stack(markers, axis=1))
    return images, labels


def _stamp(
    canvas: np.ndarray,
    width: int,
    rows: np.ndarray,
    position: np.ndarray,
    windows: np.ndarray,
) -> None:
    """Takes the maximum of canvas [n, width²] with windows [r, W, W] at positions."""
    radius = windows.shape[1] // 2
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    pixels = (rows[:, None], position[:, None] + (y * width + x).ravel())
    canvas[pixels] = np.maximum(canvas[pixels], windows.reshape(-1, y.size))


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
