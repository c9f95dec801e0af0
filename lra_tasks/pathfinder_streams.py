"""Random numbers of many pictures at once, each picture with a stream of its own."""

import dataclasses

import numpy as np

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
