"""Estimates what attentions and train steps would cost on an H200 that is not there.

    python scripts/estimate.py --out=FILE
    python scripts/estimate.py --length=2048 --attention=linear --num_heads=2
    python scripts/estimate.py --task=text --attention=nystrom-128 --dtype=float32

XLA compiles the benchmark's programs for an H200, on any machine that has JAX's plugin
for CUDA (pip install 'jax[cuda13]'). Counted are the kernels that would run and the
bytes that they read and write; the time is estimated from them. Exact attention is not
cuDNN's here, which only a GPU can compile, but XLA's in blocks.

--length estimates attentions alone, forward and with their gradient; --task a train
step of a task's paper preset, on random examples. Without either it does both, at 512
to 131,072 tokens and for ListOps, Text and Image: Nyström attention without and with
pinv_kernel, in minutes.
"""

import start

start.prepare()

import sys
from collections.abc import Iterable
from pathlib import Path

from absl import flags

from lra_tasks import TASKS
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli, markdown, provenance
from nystromformer.experiments.speed.attentions import parse_attention
from nystromformer.experiments.speed.estimate import (
    NOTE,
    Estimate,
    attention_estimates,
    find_h200,
    make_tables,
    step_estimates,
)
from nystromformer.run_files import write_text

LENGTHS = (512, 2_048, 8_192, 32_768, 131_072)
STEPS_OF = ("listops", "text", "image")
# Alone it is measured without its convolution of V, in a step with it.
ALONE = (
    "nystrom-64,conv_kernel_size=0",
    "nystrom-64,conv_kernel_size=0,pinv_kernel=true",
)
IN_A_STEP = ("nystrom-64", "nystrom-64,pinv_kernel=true")
FLAGS_OF_ATTENTIONS = ("batch_size", "num_heads", "head_dim")

_OUT = flags.DEFINE_string("out", None, "file to write the tables to, too")
_ATTENTION = flags.DEFINE_multi_string(
    "attention", None, "NAME[-SIZE][,OPTION=VALUE…]; default: nystrom-64, two ways"
)
_LENGTH = flags.DEFINE_multi_integer("length", None, "tokens of attentions alone", 1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 2, "of attentions alone", 1)
_NUM_HEADS = flags.DEFINE_integer("num_heads", 8, "of attentions alone", 1)
_HEAD_DIM = flags.DEFINE_integer("head_dim", 64, "of attentions alone", 1)
_DTYPE = flags.DEFINE_enum(
    "dtype", "bfloat16", ["float32", "bfloat16", "float16"], "of inputs or model"
)
_TASK = flags.DEFINE_multi_enum("task", None, list(TASKS), "of a train step")


def main() -> None:
    """Prints the tables, and writes them."""
    has_attentions = bool(_LENGTH.value) or not _TASK.value
    has_steps = bool(_TASK.value) or not _LENGTH.value
    for name in FLAGS_OF_ATTENTIONS:
        if flags.FLAGS[name].present and not has_attentions:
            raise ConfigError(
                f"--{name} is for attentions alone, and a train step has the sizes of "
                "its task: add --length, or leave it out"
            )
    alone = [parse_attention(label) for label in _ATTENTION.value or ALONE]
    in_a_step = [parse_attention(label) for label in _ATTENTION.value or IN_A_STEP]
    device = find_h200()

    groups = []
    if has_attentions:
        groups.append(
            attention_estimates(
                alone,
                lengths=_LENGTH.value or LENGTHS,
                device=device,
                batch_size=_BATCH_SIZE.value,
                num_heads=_NUM_HEADS.value,
                head_dim=_HEAD_DIM.value,
                dtype=_DTYPE.value,
            )
        )
    if has_steps:
        groups.append(
            step_estimates(
                in_a_step,
                tasks=_TASK.value or STEPS_OF,
                device=device,
                changes={"model.dtype": _DTYPE.value},
            )
        )

    lines = []
    for group in groups:
        tables = make_tables(collect(group))
        print("\n".join(tables), flush=True)
        lines.extend([*tables, ""])
    lines.append(NOTE)
    print(NOTE)
    if _OUT.value:
        made_by = {**provenance.collect(), "device": "NVIDIA H200, compiled for only"}
        page = markdown.make_page("Estimates for an H200", made_by, lines)
        write_text(Path(_OUT.value), page)


def collect(estimates: Iterable[Estimate]) -> list[Estimate]:
    """Returns all estimates; a line on stderr says of each that it is there."""
    done = []
    for estimate in estimates:
        key = estimate.row.key
        place = f"of {key.task}" if key.task else f"at {key.length:,}"
        print(f"{key.attention}, {key.what} {place}", file=sys.stderr, flush=True)
        done.append(estimate)
    return done


if __name__ == "__main__":
    cli.run(main)
