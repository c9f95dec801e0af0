"""Measures programs: each once for its memory, then all in turns for time.

Memory is read from the machine's own counters, beside what the compiler says.
"""

import ctypes
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nystromformer.experiments.bench.programs import Program

LEAST_SECONDS = 0.02  # of one sample; what is shorter runs several times in it
MEASURED = (
    *("stopped", "measured_bytes", "seconds", "matmul_flops_per_second"),
    *("matmul_share", "copy_bytes_per_second", "copy_share"),
)


def peak_bytes(program: Program) -> float:
    """The bytes it takes, as its compiler reports; else 0."""
    return program.cost["peak_bytes"] if program.cost else 0


def measure(
    programs: Sequence[Program],
    matmul: Program,
    copy: Program,
    *,
    rounds: int,
    budget_bytes: float,
) -> list[dict[str, Any]]:
    """A row of each program, as JSON: key, cost, measurements or error.

    Args:
      programs: what is not over the budget runs, all in the same rounds.
      matmul, copy: run among them; what the programs do in a second is also given as
        a share of what these do.
      rounds: samples of each.
      budget_bytes: of one run.
    """
    nothing = dict.fromkeys(MEASURED)
    rows = [{"key": x.key, "cost": x.cost, **nothing} for x in programs]
    # The smallest first: a counter that cannot be reset then rises with each.
    pairs = sorted(zip(programs, rows, strict=True), key=lambda x: peak_bytes(x[0]))
    for program, row in pairs:
        row |= _first_run(program, budget_bytes)
    work = [pair for pair in pairs if not pair[1]["stopped"]]
    everyone = [matmul, copy, *(program for program, _ in work)]
    for yardstick in (matmul, copy):
        yardstick.run()
    samples = interleaved([program.run for program in everyone], rounds)
    medians = [
        float(np.median(seconds)) / program.steps
        for program, seconds in zip(everyone, samples, strict=True)
    ]
    flops = (matmul.cost or {})["flops"] / medians[0]
    copied = (copy.cost or {})["bytes_accessed"] / medians[1]
    for i, (program, row) in enumerate(work, start=2):
        row["seconds"] = [x / program.steps for x in samples[i]]
        row["matmul_flops_per_second"], row["copy_bytes_per_second"] = flops, copied
        cost = program.cost or {}
        if cost.get("flops"):
            row["matmul_share"] = cost["flops"] / medians[i] / flops
            if cost["bytes_accessed"]:
                row["copy_share"] = cost["bytes_accessed"] / medians[i] / copied
    return rows


def interleaved(
    runs: Sequence[Callable[[], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Seconds of one call of each, in turns, `rounds` times.

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
        for which in np.roll(range(len(runs)), -turn):
            samples[which].append(seconds(runs[which], calls[which]))
    return samples


def _first_run(program: Program, budget_bytes: float) -> dict[str, Any]:
    """Warms up and measures memory, or returns the reason why not."""
    peak, budget = peak_bytes(program) / 2**30, budget_bytes / 2**30
    if peak > budget:
        return {"stopped": f"{peak:.2f} GiB is over the budget of {budget:.2f} GiB"}
    try:
        program.run()
        return {"measured_bytes": (program.measured_peak or measured_peak)(program.run)}
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
            return {"stopped": "ran out of memory"}
        raise


def free_bytes() -> int | None:
    """The free bytes of the device, or of a CPU's machine; None if unknown."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return _proc("/proc/meminfo", "MemAvailable")


def measured_peak(run: Callable[[], Any]) -> int | None:
    """The rise of memory in use during one run, in bytes.

    By the device's counter. It cannot be reset, so None where the process has used more
    before. On a CPU by the resident memory of the process, where Linux shows it.
    """
    device = jax.devices()[0]
    if before := device.memory_stats():
        run()
        peak = (device.memory_stats() or before)["peak_bytes_in_use"]
        rose = peak > before["peak_bytes_in_use"]
        return peak - before["bytes_in_use"] if rose else None
    try:
        ctypes.CDLL(None).malloc_trim(0)  # else what was freed before hides a peak
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    except (OSError, AttributeError):
        run()
        return None
    resident = _proc("/proc/self/status", "VmRSS")
    run()
    peak = _proc("/proc/self/status", "VmHWM")
    return None if resident is None or peak is None else max(peak - resident, 0)


def _proc(path: str, name: str) -> int | None:
    """A line `name: 123 kB` of a file of Linux, in bytes; None on other systems."""
    text = Path(path).read_text() if Path(path).exists() else ""
    match = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    return 1024 * int(match[1]) if match else None
