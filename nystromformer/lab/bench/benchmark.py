"""The benchmark: what its flags ask for, measured, and written as JSON and a page."""

import functools
import importlib
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.lab.bench.counters import SHARE, free_bytes
from nystromformer.lab.bench.curves import draw_curves
from nystromformer.lab.bench.estimates import write_estimates
from nystromformer.lab.bench.measure import fits, measure
from nystromformer.lab.bench.programs import (
    PASSES,
    Program,
    Sizes,
    attention_program,
    copy_program,
    matmul_program,
)
from nystromformer.lab.bench.results import FILE, FORMAT, compare, read_results
from nystromformer.lab.bench.summary import NOTES, describe, tables
from nystromformer.lab.bench.targets import absent_device
from nystromformer.lab.bench.train_steps import (
    input_program,
    made_up_examples,
    prepared_examples,
    task_config,
    train_program,
)
from nystromformer.lab.bench.variants import Variant, every_label, parse_variants
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.lab.run import Experiment
from nystromformer.training.files import write_json, write_text

TITLE = "Benchmark"
LENGTHS = [2**k for k in range(9, 17)]  # 512 to 65,536

Group = list[Callable[..., Program]]  # what makes the programs that take turns


def benchmark(flags: Any) -> None:
    """Measures, estimates or compares, as the flags of scripts/benchmark.py say."""
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
    plan = train_plan if flags.train_step else attention_plan
    if flags.compile_for:
        device = absent_device(flags.compile_for, flags.compilers)
        programs = itertools.chain(*plan(flags, variants))
        ready = (make(device=device) for make in programs)
        write_estimates(ready, out, flags.compile_for)
        return
    peers = load_peers() if flags.peers else None
    groups, budget = plan(flags, variants), memory_budget(flags.memory_gb)
    open_folder(out, TITLE)
    results = {**source(), "memory_budget_bytes": budget, "rows": []}
    if peers:
        results["versions"] |= peers.versions()
    yardsticks = matmul_program(flags.dtype), copy_program(flags.dtype)
    for group in groups:
        programs = [make() for make in group]
        if peers:
            found = (p.peer(peers) for p in [*programs] if fits(p, budget))
            programs += filter(None, found)
        rows = measure(programs, *yardsticks, rounds=flags.repeats, budget_bytes=budget)
        print(*map(describe, rows), sep="\n", flush=True)
        results["rows"] += rows
        write(out, results)  # whole each time: a stopped run leaves what it has
    print(f"{out / PAGE} has the tables")


def attention_plan(flags: Any, variants: list[Variant]) -> list[Group]:
    """A group for each --length, after a check of all of them."""
    if flags.data_dir or flags.parts != [1]:
        raise ConfigError("--data_dir and --parts are for --train_step")
    heads, groups = (flags.num_heads, flags.head_dim), []
    for length in sorted(set(flags.length or LENGTHS)):
        for variant in variants:
            nnx.eval_shape(functools.partial(variant.make, *heads, length))
        sizes = Sizes(length, flags.batch_size or 1, *heads, flags.dtype)
        programs = itertools.product(variants, PASSES, [sizes])
        groups.append([functools.partial(attention_program, *x) for x in programs])
    return groups


def train_plan(flags: Any, variants: list[Variant]) -> list[Group]:
    """A group for each --task, after a check of all configs."""
    if len(flags.length or []) > 1:
        raise ConfigError("--train_step takes one --length, or that of each config")
    changes = {
        "max_length": flags.length[0] if flags.length else None,
        "batch_size": flags.batch_size,
        "dtype": flags.dtype,
    }
    groups = []
    for task in dict.fromkeys(flags.task):
        experiments: dict[str, Experiment] = {}
        for variant, parts in itertools.product(variants, dict.fromkeys(flags.parts)):
            batching = {"micro_batches": parts, "length_buckets": parts}
            config = task_config(task, variant, changes | batching)
            label = f"{variant.label} in {parts}" if parts > 1 else variant.label
            experiments[label] = Experiment.from_config(config)
        first = next(iter(experiments.values()))
        sizes = first.task, first.config.train.batch_size
        if flags.data_dir:
            data = prepared_examples(*sizes, flags.data_dir), "prepared"
        else:
            data = made_up_examples(*sizes), "made up"
        group: Group = [
            functools.partial(train_program, label, experiment, *data)
            for label, experiment in experiments.items()
        ]
        if not flags.compile_for:
            group.append(functools.partial(input_program, first, *data))
        groups.append(group)
    return groups


def load_peers() -> Any:
    """The module nystromformer.lab.bench.peers, which needs PyTorch."""
    # Else JAX takes most of an accelerator's memory at once and leaves torch none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return importlib.import_module("nystromformer.lab.bench.peers")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--peers needs {error.name}: pip install -r requirements-parity.txt"
        ) from error


def memory_budget(gigabytes: float | None) -> float:
    """Bytes that one program may take."""
    free = free_bytes()
    if gigabytes is None and free is None:
        raise ConfigError("how much memory is free is not known here: say --memory_gb")
    if gigabytes is not None and not math.isfinite(gigabytes):
        raise ConfigError(f"--memory_gb={gigabytes} must be finite")
    return SHARE * (free or 0) if gigabytes is None else 1e9 * gigabytes


def write(out: Path, results: dict[str, Any]) -> None:
    """The JSON, the figure where there are curves, and the page."""
    rows, key = results["rows"], results["rows"][0]["key"]
    write_json(out / FILE, {"format": FORMAT, **results})
    budget = results["memory_budget_bytes"]
    lines = [f"- Memory budget: {budget / 1e9:.1f} · 10⁹ bytes\n"]
    if "task" not in key:
        save_figure(draw_curves(rows), out / "attention")
        lines += [
            f"Batch {key['batch_size']}, {key['num_heads']} heads of "
            f"{key['head_dim']}, {key['dtype']}.\n",
            "![Time and memory against the length](attention.png)\n",
        ]
    write_text(out / PAGE, page(TITLE, results, [*lines, *tables(rows), NOTES]))
