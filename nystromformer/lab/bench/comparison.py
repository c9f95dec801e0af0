"""Every attention beside exact softmax attention: parameters, error, memory."""

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.softmax import softmax_attention
from nystromformer.config import Config, ConfigError
from nystromformer.lab import markdown
from nystromformer.lab.bench.programs import PASSES, attention_program
from nystromformer.lab.bench.variants import Variant
from nystromformer.lab.page import page, source
from nystromformer.lab.run import Experiment
from nystromformer.lab.study.smooth import NUM_WAVES, smooth_inputs
from nystromformer.training.files import write_text

TITLE = "Attentions"
NUM_HEADS, HEAD_DIM = 2, 32
NOTES = f"""
- Parameters: of the paper preset's ListOps model, and the difference to softmax.
  Beyond 10 %: linformer alone, by its projection of k × the maximal length a layer.
- Error: ‖Y − Y*‖ / ‖Y*‖ (Frobenius) to exact attention Y*, one draw of whatever is
  random, nothing trained, nystrom without the convolution of V. Queries, keys and
  values are smooth: sums of {NUM_WAVES} sines of periods L, L/2, …, L/{NUM_WAVES}, of
  random phase and unit variance. What does not approximate softmax has a distance
  here, not a mistake: linformer untrained, linear with another kernel, reformer with
  unit keys and no 1/√H, windows with other neighbours. `none` returns the values.
- Memory: temporary MiB of the compiled program at batch 1, {NUM_HEADS} heads of
  {HEAD_DIM}, float32, without arguments and results: forward / forward and backward.
"""


def write_comparison(out: Path, names: Sequence[str], lengths: Sequence[int]) -> None:
    """Writes the table of these attentions as a Markdown file.

    Raises:
      ConfigError: an attention that cannot be of such a length, or a file of others.
    """
    if out.exists() and not out.read_bytes().startswith(f"# {TITLE}\n".encode()):
        raise ConfigError(f"--out={out} was not made by this command: name another")
    made_by, exact = source(), num_params("softmax")
    head = ["attention", "parameters", "to softmax"]
    head += [f"{x} at {n:,}" for n in lengths for x in ("error", "MiB")]
    rows = []
    for name in names:
        params = num_params(name)
        variant = Variant(name, name, {**ATTENTIONS[name].defaults})
        row = [name, f"{params:,}", f"{params / exact - 1:+.1%}"]
        for length in lengths:
            sizes: Any = {"num_heads": NUM_HEADS, "head_dim": HEAD_DIM}
            inputs = smooth_inputs(length, **sizes, count=4)
            costs = [attention_program(variant, x, inputs).cost or {} for x in PASSES]
            mib = " / ".join(f"{cost['temp_bytes'] / 2**20:.1f}" for cost in costs)
            row += [f"{error(variant, inputs[:3]):.4f}", mib]
        rows.append(row)
        print(*row, sep="  ", flush=True)
    write_text(out, page(TITLE, made_by, [*markdown.table(head, rows), NOTES]))


def error(variant: Variant, qkv: Sequence[jax.Array]) -> float:
    """Relative to exact attention, without the skip connection of V."""
    bare = {"conv_kernel_size": 0} if "conv_kernel_size" in variant.options else {}
    variant = dataclasses.replace(variant, options={**variant.options, **bare})
    exact, length = softmax_attention(*qkv), qkv[0].shape[1]
    found = variant.make(NUM_HEADS, HEAD_DIM, length)(*qkv)
    return float(jnp.linalg.norm(found - exact) / jnp.linalg.norm(exact))


def num_params(name: str) -> int:
    """Of the model of configs/listops.py with this attention."""
    config = importlib.import_module("configs.listops").get_config(name)
    return Experiment.from_config(Config.from_mapping(config.to_dict())).num_params
