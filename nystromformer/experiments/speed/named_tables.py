"""The benchmark's tables that have a name: what they measure, and beside which times.

`paper` is Table 1 of the paper, and the train steps of every LRA task. `flashnystrom`
has the sizes for which FlashNystrom, CUDA kernels for the same attention, states times.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lra_tasks import LRA
from nystromformer.experiments.speed.attentions import (
    PASSES,
    MakeAttentionBaseline,
    attention_groups,
    parse_attention,
)
from nystromformer.experiments.speed.page import Page
from nystromformer.experiments.speed.rows import Row, RowKey
from nystromformer.experiments.speed.train_steps import MakeStepBaseline, step_groups

LENGTHS = [2**k for k in range(9, 17)]
DTYPES = ("float32", "bfloat16")
NYSTROM = ("nystrom-32", "nystrom-64", "nystrom-128", "nystrom-256")
OTHERS = (
    "linformer-256",
    "performer-256",
    "reformer-64",
    "longformer-256",
    "bigbird-64",
    "linear",
    "identity",
)
# Table 1 measures the attention of the paper's equations, which have no convolution.
WITHOUT_CONVOLUTION = "conv_kernel_size=0"
# Exact attention alone has dropout on its weights: without, all are alike.
SOFTMAX_STEP = "softmax,dropout_rate=0.0"
SOURCE = (
    "README of [FlashNystrom](https://github.com/athrva98/FlashNystrom) at 300bd6d, "
    "fp16, on an NVIDIA A100-80GB and H100-80GB; FlashAttention-3 is exact attention"
)
# Milliseconds by length: forward, and forward and backward.
FLASH_64 = {  # batch 4, 16 heads of 128, 64 landmarks
    "FlashNystrom-64 on an A100": {
        4_096: (1.92, 6.79),
        16_384: (3.40, 17.66),
        65_536: (9.43, 60.94),
        131_072: (17.62, 116.78),
    },
    "FlashNystrom-64 on an H100": {
        4_096: (1.22, 3.67),
        16_384: (2.05, 8.66),
        65_536: (5.26, 27.90),
        131_072: (9.58, 53.67),
    },
    "FlashAttention-3, 16 heads, on an H100": {
        4_096: (None, 3.38),
        16_384: (None, 51.6),
        65_536: (None, 837),
        131_072: (None, 3380),
    },
}
FLASH_32 = {  # batch 1, 4 heads of 64, 32 landmarks
    "FlashNystrom-32 on an A100": {
        65_536: (0.81, 4.73),
        262_144: (1.83, 15.05),
        1_048_576: (5.92, 55.62),
    },
    "FlashNystrom-32 on an H100": {
        65_536: (0.57, 3.25),
        262_144: (1.14, 10.58),
        1_048_576: (3.58, 40.00),
    },
    "FlashAttention-3, 4 heads, on an H100": {
        65_536: (None, 32.2),
        262_144: (None, 483),
        1_048_576: (None, 7904),
    },
}


class Baselines(NamedTuple):
    """What makes the programs of other libraries, beside ours."""

    attention: Sequence[MakeAttentionBaseline]
    step: Sequence[MakeStepBaseline]


def paper_pages(baselines: Baselines) -> Iterator[tuple[str, Page]]:
    """Yields Table 1 and the train steps of each task, in each dtype."""
    nystrom = [f"{label},{WITHOUT_CONVOLUTION}" for label in NYSTROM]
    attentions = [parse_attention(x) for x in ("softmax", *nystrom, *OTHERS)]
    step_attentions = [parse_attention(x) for x in (SOFTMAX_STEP, *NYSTROM, *OTHERS)]
    for subject, dtype in itertools.product(("attention", *LRA), DTYPES):
        if subject == "attention":
            groups = attention_groups(
                attentions,
                LENGTHS,
                baselines.attention,
                batch_size=2,
                num_heads=8,
                head_dim=64,
                dtypes=[dtype],
            )
        else:
            groups = step_groups(
                step_attentions,
                tasks=[subject],
                part_counts=[1],
                baselines=baselines.step,
                changes={"model.dtype": dtype},
            )
        yield f"{subject}_{dtype}", Page(groups)


def flashnystrom_pages(baselines: Baselines) -> Iterator[tuple[str, Page]]:
    """Yields the page of FlashNystrom's sizes, with its published times."""
    sizes_of_64 = {"batch_size": 4, "num_heads": 16, "head_dim": 128}
    sizes_of_32 = {"batch_size": 1, "num_heads": 4, "head_dim": 64}
    parts = [
        ("nystrom-64", FLASH_64, sizes_of_64),
        ("nystrom-32", FLASH_32, sizes_of_32),
    ]
    groups = []
    published = []
    for label, times, sizes in parts:
        spec = parse_attention(f"{label},{WITHOUT_CONVOLUTION}")
        lengths = next(iter(times.values()))
        dtypes = ["float16", "bfloat16"]
        groups.append(
            attention_groups(
                [spec], list(lengths), baselines.attention, **sizes, dtypes=dtypes
            )
        )
        published.extend(_published_rows(times, sizes))
    yield "flashnystrom", Page(itertools.chain(*groups), published)


def _published_rows(
    times: Mapping[str, Mapping[int, tuple[float | None, float]]],
    sizes: Mapping[str, Any],
) -> Iterator[Row]:
    """Rows of one time each."""
    for attention, times_of_length in times.items():
        for length, milliseconds in times_of_length.items():
            for what, number in zip(PASSES, milliseconds, strict=True):
                if number is None:
                    continue
                key = RowKey(
                    what=what,
                    attention=attention,
                    length=length,
                    **sizes,
                    dtype="float16",
                    source=SOURCE,
                )
                yield Row(key=key, peak_bytes=None, seconds=[number / 1e3])


TABLES = {"paper": paper_pages, "flashnystrom": flashnystrom_pages}
