"""From programs to rows: each run once for its memory, then all in turns for time."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from nystromformer.lab.bench.programs import Program

LEAST_SECONDS = 0.02  # of one sample; what is shorter runs several times in it


def fits(program: Program, budget_bytes: float) -> bool:
    """Whether the program may run, as far as its compiler says what it takes."""
    return program.cost is None or program.cost["peak_bytes"] <= budget_bytes


def measure(
    programs: Sequence[Program],
    matmul: Program,
    copy: Program,
    *,
    rounds: int,
    budget_bytes: float,
) -> list[dict[str, Any]]:
    """A row of each program, as JSON: key, cost, what was measured, or what stopped it.

    Args:
      programs: what is not over the budget runs, all in the same rounds.
      matmul, copy: run among them; what the programs do in a second is also given as
        a share of what these do.
      rounds: samples of each.
      budget_bytes: of one run.
    """
    rows = [_row(program, budget_bytes) for program in programs]
    work = [pair for pair in zip(programs, rows, strict=True) if not pair[1]["stopped"]]
    # The smallest first: a counter that cannot be reset then rises with each.
    work.sort(key=lambda pair: pair[0].cost["peak_bytes"] if pair[0].cost else 0)
    work = [(program, row) for program, row in work if _first_run(program, row)]
    everyone = [matmul, copy, *(program for program, _ in work)]
    for yardstick in (matmul, copy):
        yardstick.run()
    samples = interleaved([program.run for program in everyone], rounds)
    rates = [
        (yardstick.cost or {})[what] / statistics.median(seconds)
        for yardstick, what, seconds in zip(
            (matmul, copy), ("flops", "bytes_accessed"), samples, strict=False
        )
    ]
    for (program, row), seconds in zip(work, samples[2:], strict=True):
        row["seconds"] = [x / program.steps for x in seconds]
        row["matmul_flops_per_second"], row["copy_bytes_per_second"] = rates
        cost, median = program.cost, statistics.median(row["seconds"])
        if cost and cost["flops"]:
            row["matmul_share"] = cost["flops"] / median / rates[0]
            if cost["bytes_accessed"]:
                row["copy_share"] = cost["bytes_accessed"] / median / rates[1]
    return rows


def interleaved(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, `rounds` times, so that noise meets all alike.

    All have run before. Each round begins with another one, so that none always follows
    the same.
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


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, median, upper


def _row(program: Program, budget_bytes: float) -> dict[str, Any]:
    row = {"key": program.key, "cost": program.cost, "stopped": None}
    if program.cost and not fits(program, budget_bytes):
        peak, budget = program.cost["peak_bytes"] / 2**30, budget_bytes / 2**30
        row["stopped"] = f"{peak:.2f} GiB is over the budget of {budget:.2f} GiB"
    row |= dict.fromkeys(("measured_bytes", "seconds"))
    row |= dict.fromkeys(("matmul_flops_per_second", "matmul_share"))
    return row | dict.fromkeys(("copy_bytes_per_second", "copy_share"))


def _first_run(program: Program, row: dict[str, Any]) -> bool:
    """Warms up and measures memory; False where there was not enough of it."""
    try:
        program.run()
        row["measured_bytes"] = program.measured_peak(program.run)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        of_memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
        if not of_memory:
            raise
        row["stopped"] = "ran out of memory"
    return row["stopped"] is None
