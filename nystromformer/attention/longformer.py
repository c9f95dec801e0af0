"""Longformer: a sliding window, and a few tokens that see and are seen by all.

Beltagy et al., "Longformer: The Long-Document Transformer", 2020. With w = window / 2,
token t attends to |t − s| ≤ w, 2w + 1 tokens; the first num_global valid tokens attend
to every token and every token to them. O(L · window) memory.

Differs from the published code: global tokens use the same projections as the others,
since they come from outside, and the window is the same in every layer.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_size
from nystromformer.attention.block_attention import (
    attend_blocks,
    forbid,
    self_attention,
)
from nystromformer.blocks import neighbourhoods, to_blocks
from nystromformer.nystrom import attend, nth_valid
from nystromformer.precision import at_least_float32

_MIN_BLOCK = 32  # narrower blocks of queries make matrices too small to be fast


def longformer(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    window: int,
    num_global: int,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """Longformer attention of one head of one sequence.

    Args:
      query: [L, H].
      key: [L, H].
      value: [L, H].
      mask: [L] bool, True = attend.
      window: 2w, the neighbours that a token sees beside itself.
      num_global: G, how many of the first valid tokens are global.
      precision: of the products.

    Returns:
      [L, H] in at least float32.
    """
    length = query.shape[0]
    margin = min(window // 2, length)  # w
    size = max(margin, _MIN_BLOCK)
    num_global = min(num_global, length)
    key = key * query.shape[-1] ** -0.5
    is_global = mask & (jnp.cumsum(mask) <= num_global)

    offsets = jnp.arange(size + 2 * margin)[None] - jnp.arange(size)[:, None]
    band = (offsets >= 0) & (offsets <= 2 * margin)  # [size, size + 2w]
    keep = neighbourhoods(mask & ~is_global, size, margin)
    allowed = band[None] & keep[:, None]  # [C, size, size + 2w]
    keys = neighbourhoods(key, size, margin)  # [C, size + 2w, H]
    values = neighbourhoods(value, size, margin)
    if num_global:  # their keys come once more, to every block
        # With fewer valid tokens some of these are not, but then all valid tokens are
        # global, and their rows are made below.
        tokens = nth_valid(mask, num_global)  # [G]
        shape = (len(keys), num_global)
        keys, values = (
            jnp.concatenate([x, jnp.broadcast_to(y[tokens], (*shape, y.shape[1]))], 1)
            for x, y in ((keys, key), (values, value))
        )
        fill = ((0, 0), (0, 0), (0, num_global))
        allowed = jnp.pad(allowed, fill, constant_values=True)
    bias = forbid(allowed, at_least_float32(query.dtype))
    out, _ = attend_blocks(to_blocks(query, size), keys, values, bias, precision)
    out = out.reshape(-1, out.shape[-1])[:length]
    if num_global:
        rows = attend(query[tokens], key, value, mask, precision=precision)
        out = out.at[tokens].set(rows)
    return out


def check_options(*, window: int, num_global: int) -> None:
    """Raises ValueError for options of Longformer that make no sense."""
    if window < 2 or window % 2:
        raise ValueError(
            "window must be even and at least 2 (window / 2 neighbours on each side, "
            f"window + 1 tokens in all), got {window}"
        )
    if num_global < 0:
        raise ValueError(f"num_global must be 0 or more, got {num_global}")


def longformer_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    window: int = 256,
    num_global: int = 0,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """Longformer, `longformer` lifted over heads and batch.

    Args:
      query: [B, L, N, H].
      key: [B, L, N, H].
      value: [B, L, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, L], True = attend.
      window: 2w ≥ 2, even: token t sees |t − s| ≤ w, window + 1 tokens.
      num_global: how many of the first valid tokens see, and are seen by, all.
      dropout_rng, dropout_rate, broadcast_dropout, deterministic: dropout of weights is
        not defined here, so the rate must be 0 unless deterministic.
      dtype: of the computation and the output; None = the inputs'.
      precision: of the products.
      module, is_causal: must be None and False.

    Returns:
      [B, L, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured (T ≠ S too), and for senseless options.
    """
    check_options(window=window, num_global=num_global)
    return self_attention(
        "longformer",
        partial(longformer, window=window, num_global=num_global, precision=precision),
        query,
        key,
        value,
        bias,
        mask,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        module=module,
        is_causal=is_causal,
    )


class LongformerAttention(Attention):
    """`longformer_attention`; options as there. Without parameters."""

    size_option = "window"
    defaults = {
        "window": 256,  # 128 neighbours on each side
        "num_global": 0,  # first tokens that see, and are seen by, all
    }

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
        window: int = 256,
        num_global: int = 0,
    ):
        check_options(window=window, num_global=num_global)
        all_others = max(2, 2 * (max_length - 1))
        check_size("window", window, all_others, max_length)
        check_size("num_global", num_global, max_length, max_length)
        self.window = window
        self.num_global = num_global

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        return longformer_attention(
            *inputs,
            window=self.window,
            num_global=self.num_global,
            **flax,
        )
