"""Growing the contours of Pathfinder pictures, a batch of pictures in lock-step.

Every picture of a batch goes through the same small machine (first paddles, next
paddle, start again when stuck) at its own pace; one round of the machine is a few
numpy gathers from the tables in `pathfinder_paddles`. Beside each picture lies a
mask of occupied pixels, 0..255. A paddle enters it when the next one of its contour
has been placed, since that one starts right at it; so the two contours, which grow
in turn, may touch where both have just arrived, as in the public pictures.
"""

import copy
import dataclasses

import numpy as np

from lra_tasks.pathfinder_paddles import NUM_DIRECTIONS, OCCUPIED, OVERLAP, Paddles

PADDLE_RETRIES = 2
MIN_ROWS = 1024  # rows in lock-step that make a round of numpy worth while

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014): a bijection of uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Streams:
    """Random numbers, the k-th of a picture a function of seed, index and k alone.

    SplitMix64, started at a mixed key.
    """

    def __init__(self, seed: int, indices: np.ndarray, kind: int = 0):
        start = _mix(_mix(np.array([seed], np.uint64)) + np.uint64(kind))
        self.state = _mix(start + indices.astype(np.uint64) * _GAMMA)

    def take(self, rows: np.ndarray) -> "Streams":
        """The streams of some rows, to be used instead of the originals."""
        taken = copy.copy(self)
        taken.state = self.state[rows]
        return taken

    def restart(self, rows: np.ndarray, keys: np.ndarray, number: np.ndarray):
        """Goes to the beginning of a numbered stream, one of many under each key."""
        self.state[rows] = _mix(keys + (number + 1).astype(np.uint64) * _GAMMA)

    def below(self, rows: np.ndarray, bound: np.ndarray | int) -> np.ndarray:
        """One integer uniform in [0, bound) per row, bound up to 2**31."""
        self.state[rows] += _GAMMA
        bits = (_mix(self.state[rows]) >> np.uint64(32)).astype(np.int64)
        return (bits * bound) >> 32


@dataclasses.dataclass
class Growth:
    """The paddles of n pictures of one margin; `run` fills in all arrays.

    A picture has slots for its paddles: contour 0, contour 1, then the distractors.
    """

    paddles: Paddles
    streams: Streams

    def __post_init__(self):
        p, settings = self.paddles, self.paddles.settings
        # Few of the attempts at two long contours succeed, at 128 pixels one in
        # hundreds; so a small batch makes several for each picture at a time.
        num_images = len(self.streams.state)
        self.attempts = max(1, MIN_ROWS // max(1, num_images))
        n = num_images * self.attempts
        self.streams = self.streams.take(np.arange(n) // self.attempts)
        self.rows = np.arange(n)
        self.contour_slots = 2 * settings.contour_length
        slots = settings.num_distractors * settings.distractor_length
        # The canvas position and the table row of every paddle.
        self.anchor = np.zeros((n, self.contour_slots + slots), np.int64)
        self.stamp = np.zeros_like(self.anchor)
        self.has_distractor = np.zeros((n, settings.num_distractors), bool)
        # The growing ends: anchor, stamp and pivot of each contour's last paddle.
        self.end = np.zeros((3, 2, n), np.int64)
        blank = np.full((p.width, p.width), 255, np.uint8)
        border = p.pad + settings.padding
        blank[border : p.width - border, border : p.width - border] = 0
        self.blank = blank.ravel()
        self.occupied = np.tile(self.blank, (n, 1))

    def run(self) -> "Growth":
        self._grow_contours()
        self._grow_distractors()
        return self

    def tips(self) -> np.ndarray:
        """Canvas positions [n, 2, 2] of where the two contours begin, then end."""
        length = self.paddles.settings.contour_length
        return self.anchor[:, [[0, length], [length - 1, 2 * length - 1]]]

    def _start(self, rows: np.ndarray) -> np.ndarray:
        """Where the masks of rows start in the flat array of all."""
        return rows * self.paddles.width**2

    def _finish(self, contour, rows):
        """Enters the last paddles of contours into the masks."""
        anchor, stamp, _ = self.end[:, contour, rows]
        table, flat = self.paddles.mask, self.occupied.reshape(-1)
        at = (self._start(rows) + anchor)[:, None] + table.offsets[stamp]
        flat[at] = np.maximum(flat[at], table.values[stamp])

    def _overlaps(self, rows, anchor, stamp) -> np.ndarray:
        """Whether paddles [r] touch what is already there."""
        table = self.paddles.core
        at = (self._start(rows) + anchor)[:, None] + table.offsets[stamp]
        needed = OVERLAP - table.values[stamp].astype(np.int16)
        return np.any(self.occupied.reshape(-1)[at] >= needed, axis=1)

    def _extend(self, contour, rows) -> np.ndarray:
        """Adds a paddle to the end of contours [r]; returns the success [r]."""
        p = self.paddles
        _, last, pivot = self.end[:, contour, rows]
        pivot += p.step[last]
        choices = p.choices[last]  # [r, C]
        heads = pivot[:, None] + p.ring[choices]
        at = (self._start(rows)[:, None] + heads)[:, :, None] + p.disc
        dilated = self.occupied.reshape(-1)[at].max(axis=2).astype(np.int64)
        cumulative = np.cumsum(p.turn[last] * (255 - dilated), axis=1)

        success = np.zeros(len(rows), bool)
        todo = np.flatnonzero(cumulative[:, -1] > 0)
        for _ in range(1 + PADDLE_RETRIES):
            if not todo.size:
                break
            draw = self.streams.below(rows[todo], cumulative[todo, -1])
            pick = (cumulative[todo] <= draw[:, None]).sum(axis=1)
            anchor, stamp = heads[todo, pick], choices[todo, pick]
            free = ~self._overlaps(rows[todo], anchor, stamp)
            done = todo[free]
            self._finish(contour[done], rows[done])
            end = anchor[free], stamp[free], pivot[done]
            self.end[:, contour[done], rows[done]] = end
            success[done] = True
            todo = todo[~free]
        return success

    def _record(self, contour, rows, slot):
        anchor, stamp, _ = self.end[:, contour, rows]
        self.anchor[rows, slot], self.stamp[rows, slot] = anchor, stamp

    def _begin(self, contour, rows, tail, stamp):
        """Makes first paddles the ends of contours."""
        self.end[:, contour, rows] = tail, stamp, tail + self.paddles.back[stamp]

    def _seed_contours(self, rows):
        """Clears pictures and places the first paddle of both contours."""
        p, draw = self.paddles, self.streams.below
        distance = p.settings.seed_distance
        self.occupied[rows] = self.blank
        room = p.settings.resolution - 4 * distance
        y, x = (2 * distance + draw(rows, room) for _ in range(2))
        tail = p.position(y, x)
        for contour in (0, 1):
            self._begin(contour, rows, tail, draw(rows, NUM_DIRECTIONS))
            self._record(contour, rows, contour * p.settings.contour_length)
            tail = tail + p.bearing[draw(rows, NUM_DIRECTIONS)]

    def _grow_contours(self):
        """Paddle by paddle, in turn; a picture with a stuck contour starts again.

        Attempt a of a picture has a stream of its own, and the first to succeed
        counts, so that it does not matter how many are made at a time.
        """
        length = self.paddles.settings.contour_length
        image, attempt = np.divmod(self.rows, self.attempts)
        keys = self.streams.state.copy()
        best = np.full(len(self.rows) // self.attempts, np.iinfo(np.int64).max)
        winner = np.zeros_like(best)
        count = np.zeros(len(self.rows), np.int64)  # paddles of both contours
        active = self.rows
        while active.size:
            empty = count[active] == 0
            fresh, growing = active[empty], active[~empty]
            self.streams.restart(fresh, keys[fresh], attempt[fresh])
            self._seed_contours(fresh)
            count[fresh] = 2
            contour = count[growing] % 2
            success = self._extend(contour, growing)
            stuck = growing[~success]
            count[stuck] = 0
            attempt[stuck] += self.attempts
            growing, contour = growing[success], contour[success]
            self._record(contour, growing, contour * length + count[growing] // 2)
            count[growing] += 1

            done = growing[count[growing] == 2 * length]
            tips = np.sort(self.tips()[done].reshape(-1, 4), axis=1)
            shared = done[(tips[:, 1:] == tips[:, :-1]).any(axis=1)]
            count[shared] = 0  # no marker there would say which contour it is on
            attempt[shared] += self.attempts
            done = done[count[done] > 0]
            np.minimum.at(best, image[done], attempt[done])
            done = done[attempt[done] == best[image[done]]]
            winner[image[done]] = done
            hopeful = attempt[active] < best[image[active]]
            active = active[hopeful & (count[active] < 2 * length)]
        self._keep(winner)
        for contour in (0, 1):
            self._finish(contour, self.rows)

    def _keep(self, rows):
        """Forgets all other rows."""
        self.rows = np.arange(len(rows))
        self.streams = self.streams.take(rows)
        self.occupied = self.occupied[rows]
        self.anchor, self.stamp = self.anchor[rows], self.stamp[rows]
        self.has_distractor = self.has_distractor[rows]
        self.end = self.end[:, :, rows]

    def _seed_distractors(self, rows) -> np.ndarray:
        """Tries first paddles at uniform places; returns which of these were free."""
        p, resolution = self.paddles, self.paddles.settings.resolution
        place = self.streams.below(rows, resolution**2)
        stamp = self.streams.below(rows, NUM_DIRECTIONS)
        tail = p.position(*np.divmod(place, resolution))
        self._begin(0, rows, tail, stamp)
        at = (self._start(rows) + tail)[:, None] + p.body.offsets[stamp]
        return np.all(self.occupied.reshape(-1)[at] <= OCCUPIED, axis=1)

    def _grow_distractors(self):
        """One after the other; each has a number of tries, then it is left out."""
        settings = self.paddles.settings
        length = settings.distractor_length
        before = self.occupied.copy()  # what to go back to when one gets stuck
        which, tries, count = np.zeros((3, len(self.rows)), np.int64)
        active = self.rows
        while active.size:
            empty = count[active] == 0
            fresh, growing = active[empty], active[~empty]
            seeded = self._seed_distractors(fresh)
            extended = self._extend(np.zeros_like(growing), growing)
            success = np.concatenate([seeded, extended])
            active = np.concatenate([fresh, growing])
            good, bad = active[success], active[~success]
            slot = self.contour_slots + which[good] * length + count[good]
            self._record(0, good, slot)
            count[good] += 1
            stuck = growing[~extended]
            self.occupied[stuck] = before[stuck]
            count[bad] = 0
            tries[bad] += 1

            whole = good[count[good] == length]
            self._finish(0, whole)
            before[whole] = self.occupied[whole]
            self.has_distractor[whole, which[whole]] = True
            last_try = bad[tries[bad] == settings.distractor_tries]
            over = np.concatenate([whole, last_try])
            which[over] += 1
            tries[over] = count[over] = 0
            active = active[which[active] < settings.num_distractors]
