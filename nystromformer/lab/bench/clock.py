"""Times of several programs, taken in turns, so that a noisy moment meets all alike."""

import time
from collections.abc import Callable, Sequence
from typing import Any

LEAST_SECONDS = 0.02  # of one sample; what is shorter runs several times in it


def interleaved(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, `rounds` times.

    Each round begins with another one, so that none always follows the same.

    Args:
      runs: each returns when its work is done; all have run before.
      rounds: samples of each.
      now: the clock.
    """

    def seconds(run: Callable[[], Any], calls: int) -> float:
        start = now()
        for _ in range(calls):
            run()
        return (now() - start) / calls

    calls = [1 + int(LEAST_SECONDS / max(seconds(run, 1), 1e-6)) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds):
        for i in range(len(runs)):
            which = (i + turn) % len(runs)
            samples[which].append(seconds(runs[which], calls[which]))
    return samples
