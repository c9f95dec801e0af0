"""The benchmark: what its flags ask for, measured, and written as JSON and a page."""

import importlib
import math
import os
from pathlib import Path
from typing import Any

from nystromformer.config import ConfigError
from nystromformer.lab.bench.counters import SHARE, free_bytes
from nystromformer.lab.bench.curves import draw_curves
from nystromformer.lab.bench.estimates import estimate_groups
from nystromformer.lab.bench.groups import attention_groups, load_peers, train_groups
from nystromformer.lab.bench.measure import fits, measure
from nystromformer.lab.bench.programs import copy_program, matmul_program
from nystromformer.lab.bench.results import FILE, FORMAT, compare, read_results
from nystromformer.lab.bench.summary import (
    NOTES,
    attention_tables,
    memory_cell,
    peer_table,
    time_cell,
    train_tables,
)
from nystromformer.lab.bench.targets import absent_device
from nystromformer.lab.bench.variants import every_label, parse_variants
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.training.files import write_json, write_text

TITLE = "Benchmark"


def benchmark(flags: Any) -> None:
    """Measures or compares, as the flags of scripts/benchmark.py say."""
    out = Path(flags.out).expanduser()
    if flags.against:
        files = (out, Path(flags.against).expanduser())
        ours, theirs = (read_results(path) for path in files)
        print(*compare(ours, theirs, any_device=flags.any_device), sep="\n")
        return
    for module in flags.load:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--load={module}: {error}") from error
    variants = parse_variants(flags.attention or every_label(), flags.option)
    if flags.peers and flags.compile_for:
        raise ConfigError("--compile_for runs nothing: leave out --peers")
    device = flags.compile_for and absent_device(flags.compile_for, flags.compilers)
    if flags.peers:
        load_peers()
        # Else JAX takes most of an accelerator's memory at once and leaves torch none.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    plan = train_groups if flags.train_step else attention_groups
    groups = plan(flags, variants)
    if device:
        estimate_groups(groups, out, flags.compile_for, device)
        return
    budget = memory_budget(flags.memory_gb)
    open_folder(out, TITLE)
    results = {**source(), "memory_budget_bytes": budget, "rows": []}
    if flags.peers:
        results["versions"] |= load_peers().versions()
    yardsticks = matmul_program(flags.dtype), copy_program(flags.dtype)
    for group in groups:
        programs = [*group.programs()]
        if flags.peers:
            programs += group.peers([p for p in programs if fits(p, budget)])
        rows = measure(programs, *yardsticks, rounds=flags.repeats, budget_bytes=budget)
        for row in rows:
            print(describe(row), flush=True)
        results["rows"] += rows
        write(out, results)  # whole each time: a stopped run leaves what it has
    print(f"{out / PAGE} has the tables")


def memory_budget(gigabytes: float | None) -> float:
    """Bytes that one program may take."""
    if gigabytes is not None:
        if not math.isfinite(gigabytes):
            raise ConfigError(f"--memory_gb={gigabytes} must be finite")
        return 1e9 * gigabytes
    free = free_bytes()
    if free is None:
        raise ConfigError("how much memory is free is not known here: say --memory_gb")
    return SHARE * free


def describe(row: dict[str, Any]) -> str:
    """A row as a line."""
    key = row["key"]
    where = f"{key['task']} " if "task" in key else ""
    return (
        f"{where}{key['length']:,} {key['what']} {key['attention']}: "
        f"{time_cell(row)} ms, {memory_cell(row)} MiB"
    )


def write(out: Path, results: dict[str, Any]) -> None:
    """The JSON, the figure where there are curves, and the page."""
    rows, key = results["rows"], results["rows"][0]["key"]
    write_json(out / FILE, {"format": FORMAT, **results})
    budget = results["memory_budget_bytes"]
    lines = [f"- Memory budget: {budget / 1e9:.1f} · 10⁹ bytes\n"]
    if "task" in key:
        lines += train_tables(rows)
    else:
        save_figure(draw_curves(rows), out / "attention")
        lines += [
            f"Batch {key['batch_size']}, {key['num_heads']} heads of "
            f"{key['head_dim']}, {key['dtype']}.\n",
            "![Time and memory against the length](attention.png)\n",
            *attention_tables(rows),
        ]
    write_text(out / PAGE, page(TITLE, results, [*lines, *peer_table(rows), NOTES]))
