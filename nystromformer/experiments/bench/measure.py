"""Programs as the benchmark runs them: compiled once, then timed in turns."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

LEAST_SECONDS = 0.02  # of one sample; a shorter program runs several times in it


@dataclasses.dataclass
class Program:
    """Something to time: `key` names it in JSON, `run` waits for its `steps` steps.

    peak_bytes: its memory, arguments and results included; None if unknown.
    """

    key: dict[str, Any]
    run: Callable[[], Any]
    peak_bytes: int | None = None
    steps: int = 1


def measure(programs: Sequence[Program], rounds: int) -> list[dict[str, Any]]:
    """Times programs in turns: a JSON row each.

    A row has key, peak_bytes, and the seconds of a step in each round, none where the
    program runs out of memory.
    """
    fits = [_warm_up(program) for program in programs]
    runs = [x.run for x, ok in zip(programs, fits, strict=True) if ok]
    samples, rows = iter(interleaved(runs, rounds)), []
    for program, ok in zip(programs, fits, strict=True):
        seconds = [x / program.steps for x in next(samples)] if ok else []
        found = {"peak_bytes": program.peak_bytes, "seconds": seconds}
        rows.append({"key": program.key, **found})
    return rows


def interleaved(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, in turns, `rounds` times.

    Each has run before. Every round begins with another one, so that none always
    follows the same.
    """

    def seconds(run: Callable[[], Any], calls: int) -> float:
        start = now()
        for _ in range(calls):
            run()
        return (now() - start) / calls

    calls = [1 + int(LEAST_SECONDS / max(seconds(run, 1), 1e-6)) for run in runs]
    samples: list[list[float]] = [[] for _ in runs]
    for turn in range(rounds):
        for which in np.roll(range(len(runs)), -turn):
            samples[which].append(seconds(runs[which], calls[which]))
    return samples


def _warm_up(program: Program) -> bool:
    """Runs it once; False if the memory is too small."""
    try:
        jax.block_until_ready(program.run())
    except RuntimeError as error:  # of JAX or PyTorch
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error):
            return False
        raise
    return True
