"""Checks an accelerator in minutes: are the attentions right on it, and how fast?

    python scripts/gpu_check.py --out=DIR

compares every attention, also those that --load adds, with float64 on the host: its
output and all gradients, with padding and with holes in the mask. Then it measures
exact attention, cuDNN's and Nyström attention as scripts/benchmark.py does, two
sequences of eight heads of 64 in bfloat16. DIR/correctness.jsonl has a line for each
check as soon as it has ended, and DIR/speed/README.md the times. The exit status is 1
if a check fails.
"""

import start

start.prepare()

import json
import sys

import jax
from absl import flags

from nystromformer.attention import ATTENTIONS
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli, markdown, provenance
from nystromformer.experiments.speed.attentions import (
    attention_groups,
    cudnn_baseline,
    parse_attention,
)
from nystromformer.experiments.speed.correctness import (
    check_cases,
    format_row,
    list_cases,
)
from nystromformer.experiments.speed.page import Page, write_benchmark
from nystromformer.experiments.speed.timing import check_single_gpu

CHECKS = "correctness.jsonl"
MEASURED = ("softmax", "nystrom-64,conv_kernel_size=0")

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_ATTENTION = flags.DEFINE_multi_string(
    "attention", None, "name of an attention to check; default: all"
)
_LENGTH = flags.DEFINE_multi_integer(
    "length", [512, 2048, 8192], "tokens at which the speed is measured", 1
)


def main() -> None:
    """Checks the attentions, measures their speed, and gives the verdict."""
    out = cli.local_folder(_OUT.value)
    markdown.check_folder(out, CHECKS)
    names = _ATTENTION.value or list(ATTENTIONS)
    for name in names:
        if name not in ATTENTIONS:
            raise ConfigError(
                f"--attention={name}: no such attention; known: {', '.join(ATTENTIONS)}"
            )
    check_single_gpu(jax.default_backend(), jax.device_count())
    cli.use_compilation_cache()
    print(provenance.collect()["device"], flush=True)
    out.mkdir(parents=True, exist_ok=True)

    failures = []
    cases = [case for case in list_cases() if case.name in names]
    with open(out / CHECKS, "w") as stream:
        for row in check_cases(cases):
            print(json.dumps(row), file=stream, flush=True)
            print(format_row(row), flush=True)
            if not row["passed"]:
                failures.append(row["case"])

    groups = attention_groups(
        [parse_attention(label) for label in MEASURED],
        _LENGTH.value,
        [cudnn_baseline],
        batch_size=2,
        num_heads=8,
        head_dim=64,
        dtypes=["bfloat16"],
    )
    write_benchmark(Page(groups), out / "speed", rounds=5)
    if failures:
        sys.exit("\n".join(["correctness FAILED:", *failures]))


if __name__ == "__main__":
    cli.run(main)
