"""From programs to rows: each run once for its memory, then all in turns for time."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import jax

from nystromformer.lab.bench.clock import interleaved
from nystromformer.lab.bench.programs import Program


def fits(program: Program, budget_bytes: float) -> bool:
    """Whether the program may run, as far as its compiler says what it takes."""
    return program.cost is None or program.cost.peak_bytes <= budget_bytes


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
    work = [
        (p, row) for p, row in zip(programs, rows, strict=True) if fits(p, budget_bytes)
    ]
    # The smallest first: a counter that cannot be reset then rises with each.
    work.sort(key=lambda pair: pair[0].cost.peak_bytes if pair[0].cost else 0)
    ran = [(p, row) for p, row in work if _first_run(p, row)]
    everyone = [matmul, copy, *(program for program, _ in ran)]
    for yardstick in (matmul, copy):
        yardstick.run()
    samples = interleaved([program.run for program in everyone], rounds)
    assert matmul.cost
    assert matmul.cost.flops
    assert copy.cost
    assert copy.cost.bytes_accessed
    flops_rate = matmul.cost.flops / statistics.median(samples[0])
    bytes_rate = copy.cost.bytes_accessed / statistics.median(samples[1])
    for (program, row), seconds in zip(ran, samples[2:], strict=True):
        row["seconds"] = [x / program.steps for x in seconds]
        row["matmul_flops_per_second"] = flops_rate
        row["copy_bytes_per_second"] = bytes_rate
        if program.cost is not None and program.cost.flops:
            median = statistics.median(row["seconds"])
            row["matmul_share"] = program.cost.flops / median / flops_rate
            if program.cost.bytes_accessed:
                row["copy_share"] = program.cost.bytes_accessed / median / bytes_rate
    return rows


def quartiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return lower, median, upper


def _row(program: Program, budget_bytes: float) -> dict[str, Any]:
    row: dict[str, Any] = {"key": program.key, "cost": None, "stopped": None}
    if program.cost is not None:
        peak = program.cost.peak_bytes
        row["cost"] = {**dataclasses.asdict(program.cost), "peak_bytes": peak}
        if not fits(program, budget_bytes):
            row["stopped"] = f"{_gib(peak)} is over the budget of {_gib(budget_bytes)}"
    row |= dict.fromkeys(("measured_bytes", "seconds"))
    row |= dict.fromkeys(("matmul_flops_per_second", "matmul_share"))
    row |= dict.fromkeys(("copy_bytes_per_second", "copy_share"))
    return row


def _first_run(program: Program, row: dict[str, Any]) -> bool:
    """Warms up and measures memory; False where there was not enough of it."""
    try:
        program.run()
        row["measured_bytes"] = program.measured_peak(program.run)
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and not isinstance(
            error, MemoryError
        ):
            raise
        row["stopped"] = "ran out of memory"
    return row["stopped"] is None


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
