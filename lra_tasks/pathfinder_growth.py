"""Growth: where the paddles of many Pathfinder pictures lie.

All pictures go through the same steps (first paddles, next paddle, start again when
stuck), each at its own pace, in numpy gathers from the tables of `pathfinder_paddles`.
Beside each picture is a mask of occupied pixels, 0..255. A paddle enters it when the
next one of its contour has been placed, since that one starts right at it; so the two
contours, which grow in turn, may touch where both just arrived, as in the public
pictures.

Letters: n pictures, r of them that take a step, S paddles in the tables, C paddles that
may follow one.
"""

import numpy as np

from lra_tasks.pathfinder_paddles import NUM_DIRECTIONS, Paddles
from lra_tasks.pathfinder_streams import Streams

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

    A picture has slots for its paddles: those of contour 0, then those of contour 1,
    then those of each distractor.

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
