"""Measures time and memory of every attention, as Table 1 of the paper.

python scripts/benchmark.py --out=DIR
python scripts/benchmark.py --out=DIR --train_step

writes DIR/README.md, DIR/benchmark.json and, for attentions, a figure. --train_step
measures whole train steps of the tasks' paper presets on random examples instead.
--peers adds PyTorch's attentions and train steps to the same rounds.
"""

import importlib
import os
from pathlib import Path
from typing import Any

import jax
from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.benchmark import page, programs

LENGTHS = [2**k for k in range(9, 17)]
flags.DEFINE_string("out", None, "folder to write", required=True)
flags.DEFINE_multi_string("attention", None, "NAME or NAME-SIZE; default: all")
flags.DEFINE_multi_string("option", [], "ATTENTION.OPTION=VALUE")
flags.DEFINE_multi_integer("length", None, "tokens; default: 512 to 65,536", 1)
flags.DEFINE_integer("batch_size", None, "default: 1, or the task's", 1)
flags.DEFINE_integer("num_heads", 2, "without --train_step: heads", 1)
flags.DEFINE_integer("head_dim", 32, "without --train_step: dims", 1)
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "of inputs or model")
flags.DEFINE_integer("repeats", 7, "rounds of measurements", 1)
flags.DEFINE_bool("peers", False, "measure PyTorch's, too")
flags.DEFINE_bool("train_step", False, "measure whole train steps")
flags.DEFINE_multi_enum("task", [*LRA], [*TASKS], "with --train_step: task")
flags.DEFINE_multi_integer("grad_accum_steps", [1], "with --train_step: parts", 1)


def main() -> None:
    f: Any = flags.FLAGS
    labels = f.attention or programs.all_labels()
    specs = [programs.parse_attention(x, f.option) for x in labels]
    names = {spec.name for spec in specs}
    for option in f.option:
        name = option.partition(".")[0]
        if name not in names:
            raise ConfigError(f"--option={option}: no {name} is measured")
    torch = load_torch() if f.peers else None
    if f.train_step:
        sizes = {"train.batch_size": f.batch_size, "model.dtype": f.dtype}
        sizes["task.max_length"], *more = f.length or [None]
        if more:
            raise ConfigError("--train_step takes one --length")
        groups = programs.step_groups(specs, f.task, f.grad_accum_steps, torch, **sizes)
    else:
        sizes = {"num_heads": f.num_heads, "head_dim": f.head_dim, "dtype": f.dtype}
        sizes["batch_size"] = f.batch_size or 1
        groups = programs.attention_groups(specs, f.length or LENGTHS, torch, **sizes)
    page.write_benchmark(groups, Path(f.out).expanduser(), f.repeats, torch)


def load_torch() -> Any:
    """The module `torch_baselines`; ConfigError where PyTorch cannot stand beside."""
    # Else JAX takes most of an accelerator's memory at once and leaves torch none.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        name = "nystromformer.experiments.benchmark.torch_baselines"
        baselines = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--peers needs {error.name}: pip install it") from error
    if baselines.DEVICE == "cpu" != jax.default_backend():
        raise ConfigError("--peers: JAX has an accelerator and PyTorch has none")
    return baselines


if __name__ == "__main__":
    cli.run(main)
