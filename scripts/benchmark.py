"""Time, memory and work of every attention, as Table 1 of the paper, on this machine.

python scripts/benchmark.py --out=DIR
python scripts/benchmark.py --out=DIR --train_step
python scripts/benchmark.py --out=DIR --against=OTHER.json

writes DIR/README.md, benchmark.json and, of attentions, a figure. With --train_step it
measures whole train steps of the tasks' paper presets, on made-up examples or, with
--data_dir, on the tasks' own; --peers adds PyTorch's in the same rounds. What does not
fit the memory budget is compiled, not run. With --against nothing is measured:
DIR/benchmark.json is compared with another.
"""

import functools
import importlib
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from absl import flags
from flax import nnx

from lra_tasks.task import LRA, TASKS
from nystromformer.config import DTYPES, ConfigError
from nystromformer.lab import cli
from nystromformer.lab.bench.curves import draw_curves
from nystromformer.lab.bench.measure import fits, measure
from nystromformer.lab.bench.memory import SHARE, free_bytes
from nystromformer.lab.bench.programs import (
    PASSES,
    Program,
    Sizes,
    attention_program,
    copy_program,
    matmul_program,
)
from nystromformer.lab.bench.results import compare, read_results, write_results
from nystromformer.lab.bench.tables import (
    NOTES,
    attention_tables,
    memory_cell,
    peer_table,
    time_cell,
    train_tables,
)
from nystromformer.lab.bench.train_steps import (
    input_program,
    made_up_examples,
    prepared_examples,
    task_config,
    train_program,
)
from nystromformer.lab.bench.variants import EVERY, Variant, parse_variants
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.lab.run import Experiment
from nystromformer.training.data import Data
from nystromformer.training.files import write_text

TITLE = "Benchmark"
LENGTHS = [2**k for k in range(9, 17)]  # 512 to 65,536

_OUT = flags.DEFINE_string("out", None, "the folder to write")
_ATTENTION = flags.DEFINE_multi_string(
    "attention", [*EVERY], "NAME or NAME-SIZE; repeat"
)
_OPTION = flags.DEFINE_multi_string("option", [], "ATTENTION.OPTION=VALUE; repeat")
_LENGTH = flags.DEFINE_multi_integer("length", None, "tokens; repeat", 1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "default 1, or the task's", 1)
_NUM_HEADS = flags.DEFINE_integer("num_heads", 2, "of an attention", 1)
_HEAD_DIM = flags.DEFINE_integer("head_dim", 32, "of an attention", 1)
_DTYPE = flags.DEFINE_enum("dtype", "float32", DTYPES, "of inputs, or of the model")
_MEMORY_GB = flags.DEFINE_float(
    "memory_gb",
    None,
    f"10⁹ bytes that one program may take; default {SHARE:.0%} of all",
    0,
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "rounds", 7)
_TRAIN_STEP = flags.DEFINE_bool("train_step", False, "whole train steps of tasks")
_TASK = flags.DEFINE_multi_enum(
    "task", list(LRA), list(TASKS), "with --train_step; repeat"
)
_PARTS = flags.DEFINE_multi_integer(
    "parts", [1], "micro_batches, and length_buckets, of a train step; repeat", 1
)
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "with --train_step: draw from the tasks' data, prepared there"
)
_PEERS = flags.DEFINE_bool("peers", False, "PyTorch's beside ours")
_AGAINST = flags.DEFINE_string(
    "against", None, "a benchmark.json to compare --out with"
)
_ANY_DEVICE = flags.DEFINE_bool(
    "any_device", False, "with --against: other devices too"
)
flags.mark_flag_as_required("out")


def main() -> None:
    out = Path(str(_OUT.value)).expanduser()
    if _AGAINST.value:
        files = (out, Path(_AGAINST.value).expanduser())
        ours, theirs = (read_results(path) for path in files)
        print(*compare(ours, theirs, any_device=_ANY_DEVICE.value), sep="\n")
        return
    if not _TRAIN_STEP.value and (_DATA_DIR.value or _PARTS.value != [1]):
        raise ConfigError("--data_dir and --parts are for --train_step")
    variants = parse_variants(_ATTENTION.value, _OPTION.value)
    if _PEERS.value:
        load_peers()
        # Else JAX takes most of an accelerator's memory at once and leaves torch none.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    plan = plan_train_steps(variants) if _TRAIN_STEP.value else plan_attention(variants)
    budget = memory_budget()
    open_folder(out, TITLE)
    results = {**source(), "memory_budget_bytes": budget, "rows": []}
    if _PEERS.value:
        results["versions"] |= load_peers().versions()
    yardsticks = matmul_program(_DTYPE.value), copy_program(_DTYPE.value)
    for make_programs in plan:
        programs = make_programs(budget)
        rows = measure(
            programs, *yardsticks, rounds=_REPEATS.value, budget_bytes=budget
        )
        for row in rows:
            print(describe(row), flush=True)
        results["rows"] += rows
        write(out, results)  # whole each time: a stopped run leaves what it has


def load_peers() -> Any:
    """The module nystromformer.lab.bench.peers, which needs PyTorch."""
    try:
        return importlib.import_module("nystromformer.lab.bench.peers")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--peers needs {error.name}: pip install -r requirements-parity.txt"
        ) from error


def memory_budget() -> float:
    """Bytes that one program may take."""
    if _MEMORY_GB.value is not None:
        if not math.isfinite(_MEMORY_GB.value):
            raise ConfigError(f"--memory_gb={_MEMORY_GB.value} must be finite")
        return 1e9 * _MEMORY_GB.value
    free = free_bytes()
    if free is None:
        raise ConfigError("how much memory is free is not known here: say --memory_gb")
    return SHARE * free


def plan_attention(variants: list[Variant]) -> list[Callable[[float], list[Program]]]:
    """What makes the programs of each length, after a check of all of them."""
    plan = []
    for length in sorted(set(_LENGTH.value or LENGTHS)):
        heads, head_dim = _NUM_HEADS.value, _HEAD_DIM.value
        batch_size = _BATCH_SIZE.value or 1
        sizes = Sizes(length, batch_size, heads, head_dim, _DTYPE.value)
        for variant in variants:
            shape = {"num_heads": heads, "head_dim": head_dim, "max_length": length}
            nnx.eval_shape(functools.partial(variant.make, **shape))
        plan.append(functools.partial(attention_group, variants, sizes))
    return plan


def attention_group(
    variants: list[Variant], sizes: Sizes, budget: float
) -> list[Program]:
    """The programs of one length, and the peers of those within the budget."""
    inputs = sizes.inputs()
    ours = [
        attention_program(variant, which_pass, sizes, inputs)
        for variant, which_pass in itertools.product(variants, PASSES)
    ]
    if not _PEERS.value:
        return ours
    theirs = [load_peers().attention_peer(p, inputs) for p in ours if fits(p, budget)]
    return [*ours, *(program for program in theirs if program)]


def plan_train_steps(variants: list[Variant]) -> list[Callable[[float], list[Program]]]:
    """What makes the programs of each task, after a check of all configs."""
    if len(_LENGTH.value or []) > 1:
        raise ConfigError("--train_step takes one --length, or that of each config")
    changes = {
        "max_length": _LENGTH.value[0] if _LENGTH.value else None,
        "batch_size": _BATCH_SIZE.value,
        "dtype": _DTYPE.value,
    }
    plan = []
    for task in dict.fromkeys(_TASK.value):
        experiments: dict[str, Experiment] = {}
        for variant, parts in itertools.product(variants, dict.fromkeys(_PARTS.value)):
            batching = {"micro_batches": parts, "length_buckets": parts}
            config = task_config(task, variant, changes | batching)
            label = f"{variant.label} in {parts}" if parts > 1 else variant.label
            experiments[label] = Experiment.from_config(config)
        first = next(iter(experiments.values()))
        sizes = first.task, first.config.train.batch_size
        if _DATA_DIR.value:
            data = prepared_examples(*sizes, _DATA_DIR.value)
        else:
            data = made_up_examples(*sizes)
        plan.append(functools.partial(train_group, experiments, data))
    return plan


def train_group(
    experiments: dict[str, Experiment], data: Data, budget: float
) -> list[Program]:
    """The programs of one task, and the peers of those within the budget.

    What is taken in parts has no peer: PyTorch's takes the whole batch.
    """
    ours = [train_program(label, x, data) for label, x in experiments.items()]
    programs = [*ours, input_program(next(iter(experiments.values())), data)]
    source = "prepared" if _DATA_DIR.value else "made up"
    for program in programs:
        program.key["examples"] = source
    if not _PEERS.value:
        return programs
    theirs = [
        load_peers().train_peer(program, experiment.config, data)
        for program, experiment in zip(ours, experiments.values(), strict=True)
        if fits(program, budget) and experiment.config.train.micro_batches == 1
    ]
    return [*programs, *(program for program in theirs if program)]


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
    rows = results["rows"]
    write_results(out, results)
    lines = [
        f"- Memory budget: {results['memory_budget_bytes'] / 1e9:.1f} · 10⁹ bytes\n"
    ]
    if _TRAIN_STEP.value:
        lines += train_tables(rows)
    else:
        save_figure(draw_curves(rows), out / "attention")
        key = rows[0]["key"]
        lines += [
            f"Batch {key['batch_size']}, {key['num_heads']} heads of "
            f"{key['head_dim']}, {key['dtype']}.\n",
            "![Time and memory against the length](attention.png)\n",
            *attention_tables(rows),
        ]
    write_text(out / PAGE, page(TITLE, results, [*lines, *peer_table(rows), NOTES]))


if __name__ == "__main__":
    cli.run(main)
