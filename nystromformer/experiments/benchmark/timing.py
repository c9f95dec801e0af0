"""How programs are timed: in turns, so that none has a better machine than others."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nystromformer.training.compiled import program_bytes

# A sample takes at least this long; a shorter program runs several times in it.
MIN_SECONDS = 0.02
# What the RuntimeErrors of JAX and PyTorch say if the memory is too small.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory")


@dataclasses.dataclass
class Program:
    """A program that is timed.

    key: what it is, for the JSON of the benchmark.
    run: runs it and waits for its end.
    peak_bytes: its memory, arguments and results included; None if unknown.
    steps: the number of steps in one run; their time is reported.
    """

    key: dict[str, Any]
    run: Callable[[], Any]
    peak_bytes: int | None = None
    steps: int = 1


def compile_program(function: Any, *args: Any) -> tuple[Any, int | None]:
    """Compiles a jitted function for these arguments; also returns its bytes."""
    compiled = function.lower(*args).compile()
    return compiled, program_bytes(compiled)


def measure(programs: Sequence[Program], rounds: int) -> list[dict[str, Any]]:
    """Times programs in turns.

    Args:
      programs: what is timed.
      rounds: how often each gets its turn; 0 runs nothing.

    Returns:
      A row for each program:
        key, peak_bytes: the program's.
        seconds: of one step, in each round; empty if it runs out of memory.
    """
    rows = []
    runnable = []
    for program in programs:
        row: dict[str, Any] = {
            "key": program.key,
            "peak_bytes": program.peak_bytes,
            "seconds": [],
        }
        rows.append(row)
        if rounds > 0 and _warm_up(program):
            runnable.append((program, row))

    samples = sample_in_turns([program.run for program, _ in runnable], rounds)
    for (program, row), seconds in zip(runnable, samples, strict=True):
        row["seconds"] = [x / program.steps for x in seconds]
    return rows


def sample_in_turns(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Returns the seconds of one call of each function, in each round.

    Every round begins with another function, so that none always follows the same one.

    Args:
      runs: functions, each of which has been called before.
      rounds: how often each is sampled.
      now: the clock.
    """

    def seconds_per_call(run: Callable[[], Any], num_calls: int) -> float:
        start = now()
        for _ in range(num_calls):
            run()
        return (now() - start) / num_calls

    num_calls = []
    for run in runs:
        seconds = max(seconds_per_call(run, 1), 1e-6)
        num_calls.append(1 + int(MIN_SECONDS / seconds))

    samples: list[list[float]] = [[] for _ in runs]
    for first in range(rounds):
        for index in np.roll(range(len(runs)), -first):
            samples[index].append(seconds_per_call(runs[index], num_calls[index]))
    return samples


def _warm_up(program: Program) -> bool:
    """Runs a program once; returns False if the memory is too small for it."""
    try:
        program.run()
    except RuntimeError as error:
        if any(text in str(error) for text in OUT_OF_MEMORY):
            return False
        raise
    return True
