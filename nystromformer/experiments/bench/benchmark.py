"""The benchmark: measures what its flags ask for, and writes JSON and a page."""

import importlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.experiments.bench import programs, summary, train_steps
from nystromformer.experiments.bench.curves import draw_curves
from nystromformer.experiments.bench.measure import free_bytes, measure, peak_bytes
from nystromformer.experiments.bench.programs import Program
from nystromformer.experiments.bench.variants import (
    Variant,
    every_label,
    parse_variants,
)
from nystromformer.experiments.page import PAGE, open_folder, page, source
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.study.smooth import smooth_inputs
from nystromformer.training.files import write_json, write_text

TITLE, FILE = "Benchmark", "benchmark.json"
LENGTHS = [2**k for k in range(9, 17)]  # 512 to 65,536
SHARE = 0.8  # of what is free; the rest is for inputs, the compiler and others

Groups = Iterable[Iterator[Program]]  # those of a group take turns


def benchmark(flags: Any) -> None:
    """Measures, as the flags of scripts/benchmark.py say."""
    out = Path(flags.out).expanduser()
    for module in flags.load:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--load={module}: {error}") from error
    variants = parse_variants(flags.attention or every_label(), flags.option)
    groups = train_groups if flags.train_step else attention_groups
    measure_groups(flags, groups, variants, out)


def measure_groups(flags: Any, groups: Any, variants: list[Variant], out: Path) -> None:
    """Runs the programs that fit the memory budget; writes after each group."""
    peers, results = load_peers() if flags.peers else None, source()
    planned, budget = groups(flags, variants), memory_budget(flags.memory_gb)
    open_folder(out, TITLE)
    results |= {"memory_budget_bytes": budget, "rows": []}
    if peers:
        results["versions"] |= peers.versions()
    yardsticks = (
        programs.matmul_program(flags.dtype),
        programs.copy_program(flags.dtype),
    )
    for group in planned:
        work = [*group]
        if peers:
            fitting = [x for x in work if peak_bytes(x) <= budget]
            work += filter(None, (x.peer(peers) for x in fitting))
        rows = measure(work, *yardsticks, rounds=flags.repeats, budget_bytes=budget)
        print(*map(summary.describe, rows), sep="\n", flush=True)
        results["rows"] += rows
        write(out, results)  # whole each time: a stopped run leaves what it has
    print(f"{out / PAGE} has the tables")


def attention_groups(flags: Any, variants: list[Variant]) -> Groups:
    """A group for each --length, after a check of all of them."""
    if flags.data_dir or flags.parts != [1]:
        raise ConfigError("--data_dir and --parts are for --train_step")
    lengths = sorted(set(flags.length or LENGTHS))
    sizes = {"num_heads": flags.num_heads, "head_dim": flags.head_dim}
    for length, variant in itertools.product(lengths, variants):
        nnx.eval_shape(lambda v=variant, n=length: v.make(**sizes, length=n))

    def group(length: int) -> Iterator[Program]:
        rest = {"batch_size": flags.batch_size or 1, "dtype": flags.dtype, "count": 4}
        inputs = smooth_inputs(length, **sizes, **rest)
        for variant, which_pass in itertools.product(variants, programs.PASSES):
            yield programs.attention_program(variant, which_pass, inputs)

    return map(group, lengths)


def train_groups(flags: Any, variants: list[Variant]) -> Groups:
    """A group for each --task, after a check of all configs."""
    if len(flags.length or []) > 1:
        raise ConfigError("--train_step takes one --length, or that of each config")
    changes = {
        "max_length": flags.length[0] if flags.length else None,
        "batch_size": flags.batch_size,
        "dtype": flags.dtype,
    }
    examples, groups = "prepared" if flags.data_dir else "made up", []
    for task in dict.fromkeys(flags.task):
        experiments: dict[str, Experiment] = {}
        for variant, parts in itertools.product(variants, dict.fromkeys(flags.parts)):
            batching = {"grad_accum_steps": parts, "length_buckets": parts}
            config = train_steps.task_config(task, variant, changes | batching)
            label = f"{variant.label} in {parts}" if parts > 1 else variant.label
            experiments[label] = Experiment.from_config(config)
        first = next(iter(experiments.values()))
        sizes = first.task, first.config.train.batch_size
        if flags.data_dir:
            data = train_steps.prepared_examples(*sizes, flags.data_dir)
        else:
            data = train_steps.made_up_examples(*sizes)
        groups.append((experiments, data))

    def group(experiments: dict[str, Experiment], data: Any) -> Iterator[Program]:
        for label, experiment in experiments.items():
            yield train_steps.train_program(label, experiment, data, examples)

    return itertools.starmap(group, groups)


def load_peers() -> Any:
    """The module nystromformer.experiments.bench.peers, which needs PyTorch."""
    # Else JAX takes most of an accelerator's memory at once and leaves torch none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return importlib.import_module("nystromformer.experiments.bench.peers")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--peers needs {error.name}: pip install -r requirements-parity.txt"
        ) from error


def memory_budget(gigabytes: float | None) -> float:
    """The bytes that one program may use."""
    free = free_bytes()
    if gigabytes is None and free is None:
        raise ConfigError("the amount of free memory is unknown here: give --memory_gb")
    if gigabytes is not None and not math.isfinite(gigabytes):
        raise ConfigError(f"--memory_gb={gigabytes} must be finite")
    return SHARE * (free or 0) if gigabytes is None else 1e9 * gigabytes


def write(out: Path, results: dict[str, Any]) -> None:
    """The JSON, the figure where there are curves, and the page."""
    rows, key = results["rows"], results["rows"][0]["key"]
    write_json(out / FILE, results)
    budget = results["memory_budget_bytes"]
    lines = [f"- Memory budget: {budget / 1e9:.1f} · 10⁹ bytes\n"]
    if "task" not in key:
        save_figure(draw_curves(rows), out / "attention")
        lines += [
            f"Batch {key['batch_size']}, {key['num_heads']} heads of "
            f"{key['head_dim']}, {key['dtype']}.\n",
            "![Time and memory against the length](attention.png)\n",
        ]
    lines += [*summary.tables(rows), summary.NOTES]
    write_text(out / PAGE, page(TITLE, results, lines))
