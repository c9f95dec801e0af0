"""Measures time and memory of every attention, as Table 1 of the paper.

    python scripts/benchmark.py --out=DIR
    python scripts/benchmark.py --out=DIR --train_step
    python scripts/benchmark.py --out=DIR --table=paper

The first writes DIR/README.md, DIR/benchmark.json and a figure. --train_step measures
whole train steps of the tasks' paper presets on random examples instead. --table
measures what has a name, a page in a folder of DIR each: `paper` Table 1 and the steps
of every task in float32 and bfloat16, `flashnystrom` the sizes of FlashNystrom beside
its published times. A page that is complete is left out, so that the same command goes
on where the last one was stopped.

--peers adds PyTorch's attentions and train steps to the same rounds; it needs what is
in requirements-parity.txt. --repeats=0 measures memory alone, as it is compiled.
"""

import start

start.prepare()

import importlib
import os
from typing import Any

import jax
from absl import flags

from lra_tasks import LRA, TASKS
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.speed.attentions import (
    WHOLE_SOFTMAX,
    AttentionSpec,
    attention_groups,
    cudnn_baseline,
    list_labels,
    parse_attention,
)
from nystromformer.experiments.speed.named_tables import LENGTHS, TABLES, Baselines
from nystromformer.experiments.speed.page import (
    Page,
    write_benchmark,
    write_missing_pages,
)
from nystromformer.experiments.speed.timing import check_single_gpu
from nystromformer.experiments.speed.train_steps import step_groups

TORCH_BASELINES = "nystromformer.experiments.speed.torch_baselines"
# A named table sets them itself.
FLAGS_OF_OWN_TABLES = (
    "attention",
    "length",
    "batch_size",
    "num_heads",
    "head_dim",
    "dtype",
    "train_step",
    "task",
    "grad_accum_steps",
)

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_TABLE = flags.DEFINE_enum("table", None, list(TABLES), "a table that has a name")
_ATTENTION = flags.DEFINE_multi_string(
    "attention", None, "NAME[-SIZE][,OPTION=VALUE…]; default: all"
)
_LENGTH = flags.DEFINE_multi_integer(
    "length", None, "tokens; default: 512 to 65,536", 1
)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", None, "default: 1, or the task's", 1)
_NUM_HEADS = flags.DEFINE_integer("num_heads", 2, "without --train_step: heads", 1)
_HEAD_DIM = flags.DEFINE_integer(
    "head_dim", 32, "without --train_step: size of a head", 1
)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16", "float16"], "of inputs or model"
)
_REPEATS = flags.DEFINE_integer("repeats", 7, "rounds; 0: memory alone", 0)
_PEERS = flags.DEFINE_bool("peers", False, "measure PyTorch's, too")
_TRAIN_STEP = flags.DEFINE_bool("train_step", False, "measure whole train steps")
_TASK = flags.DEFINE_multi_enum(
    "task", list(LRA), list(TASKS), "with --train_step: task"
)
_GRAD_ACCUM_STEPS = flags.DEFINE_multi_integer(
    "grad_accum_steps", [1], "with --train_step: parts of a batch", 1
)


def main() -> None:
    """Measures attentions or train steps, and writes the pages."""
    if _PEERS.value and not _REPEATS.value:
        raise ConfigError("--peers measures time alone: give --repeats of at least 1")
    check_flags_have_an_effect()
    specs = parse_attentions()
    baselines = Baselines(attention=[cudnn_baseline], step=[])
    library_versions = None
    if _PEERS.value:
        torch_baselines = load_torch_baselines()
        baselines = Baselines(
            attention=[cudnn_baseline, torch_baselines.attention_baseline],
            step=[torch_baselines.train_baseline],
        )
        library_versions = torch_baselines.VERSIONS
    # This starts JAX, and `load_torch_baselines` must have said before how much memory
    # JAX takes then.
    check_single_gpu(jax.default_backend(), jax.device_count())

    cli.use_compilation_cache()
    out = cli.local_folder(_OUT.value)
    if _TABLE.value:
        pages = dict(TABLES[_TABLE.value](baselines))
        write_missing_pages(pages, out, _REPEATS.value, library_versions)
    else:
        page = make_page(specs, baselines)
        write_benchmark(page, out, _REPEATS.value, library_versions)


def check_flags_have_an_effect() -> None:
    """Raises ConfigError for a flag that what is measured does not need."""
    for name in FLAGS_OF_OWN_TABLES:
        if flags.FLAGS[name].present and _TABLE.value:
            raise ConfigError(
                f"--{name} has no effect on --table={_TABLE.value}, which has sizes of "
                "its own: leave one of them out"
            )
    for name in ("task", "grad_accum_steps"):
        if flags.FLAGS[name].present and not _TRAIN_STEP.value:
            raise ConfigError(f"--{name} is for whole train steps: add --train_step")
    for name in ("num_heads", "head_dim"):
        if flags.FLAGS[name].present and _TRAIN_STEP.value:
            raise ConfigError(
                f"--{name} is for an attention alone, and --train_step takes the model "
                "of the task: leave one of them out"
            )


def parse_attentions() -> list[AttentionSpec]:
    """Returns the attentions of --attention, or all."""
    labels = _ATTENTION.value or list_labels()
    if _TRAIN_STEP.value and not _ATTENTION.value:
        labels.remove(WHOLE_SOFTMAX)  # No model takes it.
    return [parse_attention(label) for label in labels]


def make_page(specs: list[AttentionSpec], baselines: Baselines) -> Page:
    """Returns attentions or train steps with the sizes that the flags give."""
    if not _TRAIN_STEP.value:
        groups = attention_groups(
            specs,
            lengths=_LENGTH.value or LENGTHS,
            baselines=baselines.attention,
            batch_size=_BATCH_SIZE.value or 1,
            num_heads=_NUM_HEADS.value,
            head_dim=_HEAD_DIM.value,
            dtypes=[_DTYPE.value],
        )
        return Page(groups)

    lengths = _LENGTH.value or [None]
    if len(lengths) > 1:
        raise ConfigError("--train_step takes one --length")
    # None leaves a setting as the task has it.
    changes = {
        "task.max_length": lengths[0],
        "train.batch_size": _BATCH_SIZE.value,
        "model.dtype": _DTYPE.value,
    }
    groups = step_groups(
        specs,
        tasks=_TASK.value,
        part_counts=_GRAD_ACCUM_STEPS.value,
        baselines=baselines.step,
        changes=changes,
    )
    return Page(groups)


def load_torch_baselines() -> Any:
    """Returns the module `torch_baselines`.

    Raises:
      ConfigError: if a library is not installed, or PyTorch would use a slower device.
    """
    # Otherwise JAX takes most of an accelerator's memory and leaves torch none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        baselines = importlib.import_module(TORCH_BASELINES)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--peers needs {error.name}: pip install -r requirements-parity.txt"
        ) from error
    if baselines.DEVICE == "cpu" and jax.default_backend() != "cpu":
        raise ConfigError("--peers: JAX has an accelerator and PyTorch has none")
    return baselines


if __name__ == "__main__":
    cli.run(main)
