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

from nystromformer.attention.base import Attention, check_range
from nystromformer.blocks import neighbourhoods, to_blocks
from nystromformer.nystrom import attend, nth_valid

_MIN_BLOCK = 32  # tokens of a block of queries; smaller matrices are slow


class LongformerAttention(Attention):
    """A band and global tokens. Without parameters.

    Options:
      window: 2w ≥ 2, even: token t sees |t − s| ≤ w, window + 1 tokens.
      num_global: number of first valid tokens that see, and are seen by, all.
    """

    self_attention_only = True
    size_option = "window"

    def __init__(self, *, window: int = 256, num_global: int = 0, **sizes: Any):
        super().__init__(**sizes)
        check_range("window", window, 2, max(2, 2 * (self.max_length - 1)))
        if window % 2:
            why = "window / 2 neighbours on each side"
            raise ValueError(f"window must be even ({why}), got {window}")
        check_range("num_global", num_global, 0, self.max_length)
        self.window = window
        self.num_global = num_global

    def attend(self, query, key, value, mask, precision):
        mask = jnp.ones(len(key), bool) if mask is None else mask
        length = query.shape[0]
        margin = min(self.window // 2, length)  # w
        size = max(margin, _MIN_BLOCK)
        num_global = min(self.num_global, length)
        key = key * query.shape[-1] ** -0.5
        is_global = mask & (jnp.cumsum(mask) <= num_global)

        offsets = jnp.arange(size + 2 * margin)[None] - jnp.arange(size)[:, None]
        band = (offsets >= 0) & (offsets <= 2 * margin)  # [size, size + 2w]
        keep = neighbourhoods(mask & ~is_global, size, margin)
        allowed = band[None] & keep[:, None]  # [C, size, size + 2w]
        keys = neighbourhoods(key, size, margin)  # [C, size + 2w, H]
        values = neighbourhoods(value, size, margin)
        if num_global:  # every block gets their keys once more
            # With fewer valid tokens some of these are padding, but then every valid
            # token is global, and its row is made below.
            tokens = nth_valid(mask, num_global)  # [G]
            shape = (len(keys), num_global, query.shape[-1])
            keys, values = (
                jnp.concatenate([x, jnp.broadcast_to(y[tokens], shape)], axis=1)
                for x, y in ((keys, key), (values, value))
            )
            fill = ((0, 0), (0, 0), (0, num_global))
            allowed = jnp.pad(allowed, fill, constant_values=True)
        of_blocks = jax.vmap(partial(attend, precision=precision))
        out = of_blocks(to_blocks(query, size), keys, values, allowed)
        out = out.reshape(-1, out.shape[-1])[:length]
        if num_global:
            rows = attend(query[tokens], key, value, mask, precision=precision)
            out = out.at[tokens].set(rows)
        return out
