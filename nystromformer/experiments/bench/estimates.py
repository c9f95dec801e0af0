"""Compiles programs for a device that is not there and estimates their times."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nystromformer.experiments.bench.hlo_cost import kernel_bytes
from nystromformer.experiments.bench.programs import Program
from nystromformer.experiments.bench.summary import DASH, Row, describe, numbers, pivot
from nystromformer.experiments.bench.targets import EFFICIENCY, TARGETS, Target
from nystromformer.experiments.page import PAGE, open_folder, page, source
from nystromformer.training.files import write_json, write_text

TITLE = "Estimates"
FILE = "estimates.json"
NOTES = """\
- Nothing here was measured: the programs were compiled for a {name} on a machine
  without one. Train steps are counted once.
- Estimate: each kernel takes {kernel:.1f} µs and its bytes at {share:.0%} of
  {bandwidth:.2f} TB/s, at least {least:.1f} µs; the sum is at least the floors.
  Nothing is autotuned: expect 1.3 to 1.5 times as much on a GPU. The time that a TPU's
  kernel takes besides its bytes is unknown: small programs take longer.
- Floors: all bytes at {bandwidth:.2f} TB/s / all FLOPs at {peak:.0f} TFLOP/s; float32
  products above JAX's default precision take longer.
- Bytes: those that each kernel reads and writes. Slices and updates count only the
  part, branches the larger side; a TPU's fast memory does not count.
- FLOPs: of matrix products; {dash} if they depend on the lengths of the data.
- Memory: arguments, results and temporaries as compiled.
"""
CELLS = {
    "kernels": numbers(("kernels", 1, ",.0f")),
    "GB moved": numbers(("bytes", 1e9, ".3g")),
    "GFLOP": numbers(("flops", 1e9, ".4g")),
    "MiB of memory": numbers(("memory_bytes", 2**20, ",.1f")),
    "seconds to compile": numbers(("compile_seconds", 1, ".0f")),
}


def write_estimates(programs: Iterable[Program], out: Path, name: str) -> None:
    """Writes README.md and estimates.json of programs of one dtype as they compile.

    The name is that of their device in TARGETS.
    """
    target, rows = TARGETS[name], []
    results = {**source(), "compiled_for": name, "rows": rows}
    open_folder(out, TITLE)
    for program in programs:
        rows.append(estimate(program, target))
        found = f"estimated {_time_cell(rows[-1])} ms, {rows[-1]['kernels']:,} kernels"
        print(describe(rows[-1], found), flush=True)
        notes = NOTES.format(
            name=name,
            kernel=1e6 * target.kernel_seconds,
            least=1e6 * target.least_seconds,
            share=EFFICIENCY,
            bandwidth=target.bandwidth / 1e12,
            peak=getattr(target, program.key["dtype"]) / 1e12,
            dash=DASH,
        )
        write_json(out / FILE, results)
        write_text(out / PAGE, page(TITLE, results, [*tables(rows), notes]))
    print(f"{out / PAGE} has the tables")


def estimate(program: Program, target: Target) -> dict[str, Any]:
    """A row of JSON."""
    sizes, cost = kernel_bytes(program.compiled.as_text()), program.cost
    assert cost is not None
    by_bytes = sum(sizes) / target.bandwidth
    by_flops = (cost["flops"] or 0) / getattr(target, program.key["dtype"])
    return {
        "key": program.key,
        "estimated_seconds": max(sum(map(target.seconds, sizes)), by_bytes, by_flops),
        "bytes_floor_seconds": by_bytes,
        "flops_floor_seconds": by_flops,
        "kernels": len(sizes),
        "bytes": sum(sizes),
        "flops": cost["flops"],
        "memory_bytes": cost["peak_bytes"],
        "compile_seconds": cost["compile_seconds"],
    }


def tables(rows: list[dict[str, Any]]) -> list[str]:
    """Lines: the estimates of each pass, or of train steps."""
    lines = []
    for what in dict.fromkeys(row["key"]["what"] for row in rows):
        chosen = [row for row in rows if row["key"]["what"] == what]
        name = what.replace("+", " and ").capitalize()
        cells = {"estimated ms (floors: bytes / FLOPs)": _time_cell, **CELLS}
        for title, cell in cells.items():
            lines += pivot(f"{name}: {title}", chosen, cell)
    return lines


def _time_cell(row: Row) -> str:
    names = ("estimated_seconds", "bytes_floor_seconds", "flops_floor_seconds")
    whole, by_bytes, by_flops = (f"{1e3 * row[name]:.3g}" for name in names)
    return f"{whole} ({by_bytes} / {by_flops})"
