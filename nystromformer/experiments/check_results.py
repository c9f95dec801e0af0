"""The results of scripts/gpu_check.py: a file of JSON lines, tables, and a verdict."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nystromformer.experiments.markdown import make_table

FILE = "results.jsonl"
Row = dict[str, Any]


def add_row(out: Path, row: Row) -> None:
    """Adds a line to the results in a folder."""
    with open(out / FILE, "a") as stream:
        stream.write(json.dumps(row) + "\n")


def read_rows(out: Path) -> list[Row]:
    """Returns all lines of the results in a folder."""
    return [json.loads(line) for line in (out / FILE).read_text().splitlines()]


def read_benchmark(folder: Path) -> Iterator[Row]:
    """Yields what scripts/benchmark.py has measured so far: medians in ms."""
    path = folder / "benchmark.json"
    if not path.exists():
        return
    for row in json.loads(path.read_text())["rows"]:
        key = row["key"]
        seconds = row["seconds"]
        yield {
            "what": key["what"],
            "attention": key["attention"],
            "task": key.get("task"),
            "length": key["length"],
            "dtype": key["dtype"],
            "ms": 1e3 * float(np.median(seconds)) if seconds else None,
        }


def format_rows(rows: Sequence[Row]) -> list[str]:
    """Returns the device, and the lines of tables: commands, correctness and times."""
    devices = [
        f"{row['device']}, jax {row['versions']['jax']}"
        for row in rows
        if "device" in row
    ]
    commands = [
        [row["command"], row["status"], f"{row['seconds']:.0f}"]
        for row in rows
        if "status" in row
    ]
    checks = [
        [
            row["case"],
            _format_error(row),
            f"{row['limit']:.0e}",
            "ok" if row["passed"] else "FAILED",
            {True: "yes", False: "no", None: ""}[row.get("same_bits")],
        ]
        for row in rows
        if "case" in row
    ]
    times = [
        [
            f"{row['what']}, {row['dtype']}",
            f"{row['task'] or ''} {row['length']}".strip(),
            row["attention"],
            "out of memory" if row["ms"] is None else f"{row['ms']:.3g}",
        ]
        for row in rows
        if "ms" in row
    ]
    checks_header = ["case", "largest error", "limit", "verdict", "same bits twice"]
    lines = [
        *devices,
        "",
        *make_table(["command", "status", "seconds"], commands),
        "",
        *make_table(checks_header, checks),
        "",
        *make_table(["what", "task and length", "attention", "ms"], times),
    ]
    # A terminal shows the backslashes that Markdown needs.
    return [line.replace("\\", "") for line in lines]


def _format_error(row: Row) -> str:
    """The largest error of a check, and which array has it; or why there is none."""
    if "failure" in row:
        return row["failure"]
    errors = row["errors"]
    worst = max(errors, key=lambda name: (np.isnan(errors[name]), errors[name]))
    return f"{errors[worst]:.1e} ({worst})"


def list_failures(rows: Sequence[Row]) -> list[str]:
    """Returns the checks of correctness that failed, or that did not end."""
    checks = [row for row in rows if "case" in row]
    failures = [row["case"] for row in checks if not row["passed"]]
    num_cases = sum(row.get("num_cases", 0) for row in rows)
    if not num_cases:
        failures.append("the checks did not begin: see logs/correctness.txt")
    elif len(checks) < num_cases:
        failures.append(f"only {len(checks)} of {num_cases} cases ended in time")
    return failures
