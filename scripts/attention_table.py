"""Every attention beside exact softmax attention: parameters, error, memory.

python scripts/attention_table.py --out=results/attentions.md
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

from configs.listops import get_config
from nystromformer.attention import ATTENTIONS, make_attention
from nystromformer.attention.base import Attention
from nystromformer.attention.softmax import softmax_attention
from nystromformer.config import Config, ConfigError
from nystromformer.lab import cli
from nystromformer.lab.page import page, source
from nystromformer.lab.run import Experiment
from nystromformer.lab.study.smooth import NUM_WAVES, smooth_inputs
from nystromformer.training.files import write_text

_LENGTHS = flags.DEFINE_multi_integer("length", [2048, 8192], "columns", 1)
_ATTENTIONS = flags.DEFINE_multi_enum("attention", list(ATTENTIONS), ATTENTIONS, "rows")
_OUT = flags.DEFINE_string("out", None, "the Markdown file to write")
flags.mark_flag_as_required("out")

NUM_HEADS, HEAD_DIM = 2, 32
NO_SKIP = {"nystrom": {"conv_kernel_size": 0}}
NOTES = f"""\
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


def make(name: str, length: int, **options: Any) -> Attention:
    try:
        return make_attention(
            name,
            num_heads=NUM_HEADS,
            head_dim=HEAD_DIM,
            max_length=length,
            rngs=nnx.Rngs(0),
            **{**ATTENTIONS[name].defaults, **options},
        )
    except ValueError as error:
        raise ConfigError(f"{name} at --length={length}: {error}") from error


def error(name: str, length: int) -> float:
    """Relative to exact attention, without the skip connection of V."""
    attention = make(name, length, **NO_SKIP.get(name, {}))
    inputs = smooth_inputs(length, num_heads=NUM_HEADS, head_dim=HEAD_DIM)
    exact = softmax_attention(*inputs)
    return float(jnp.linalg.norm(attention(*inputs) - exact) / jnp.linalg.norm(exact))


def memory(name: str, length: int, *, backward: bool) -> float:
    """MiB of temporaries; compiled, not run."""
    graphdef, params, rest = nnx.split(make(name, length), nnx.Param, ...)

    def forward(params: nnx.State, *inputs: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, rest)(*inputs)

    gradient = jax.grad(lambda *args: forward(*args).sum(), argnums=(0, 1, 2, 3))
    x = jax.ShapeDtypeStruct((1, length, NUM_HEADS, HEAD_DIM), jnp.float32)
    program = jax.jit(gradient if backward else forward).lower(params, x, x, x)
    usage: Any = program.compile().memory_analysis()
    return usage.temp_size_in_bytes / 2**20


def num_params(name: str) -> int:
    mapping = get_config(name).to_dict()
    return Experiment.from_config(Config.from_mapping(mapping)).num_params


def main() -> None:
    made_by = source()
    columns = [f"{x} at {n:,}" for n in _LENGTHS.value for x in ("error", "MiB")]
    table = [["attention", "parameters", "to softmax", *columns]]
    exact = num_params("softmax")
    for name in _ATTENTIONS.value:
        params = num_params(name)
        row = [name, f"{params:,}", f"{params / exact - 1:+.1%}"]
        for n in _LENGTHS.value:
            usage = [memory(name, n, backward=backward) for backward in (False, True)]
            row += [f"{error(name, n):.4f}", " / ".join(f"{mib:.1f}" for mib in usage)]
        table.append(row)
        print(*row, sep="  ", flush=True)
    table.insert(1, ["---", *["---:"] * (len(table[0]) - 1)])
    lines = [f"| {' | '.join(row)} |" for row in table]
    write_text(Path(str(_OUT.value)), page("Attentions", made_by, [*lines, "", NOTES]))


if __name__ == "__main__":
    cli.run(main)
