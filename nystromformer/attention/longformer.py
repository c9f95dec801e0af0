"""Longformer: a sliding window over the sequence.

Beltagy et al., "Longformer: The Long-Document Transformer", 2020. With w = window / 2,
token t attends to |t − s| ≤ w, 2w + 1 tokens, in O(L · window) memory. The window is
the same in every layer, and there are no global tokens, as on the LRA.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.blocks import neighbourhoods, to_blocks
from nystromformer.dot_product import attend
from nystromformer.validation import check_range

_MIN_BLOCK = 32  # tokens of a block of queries; smaller matrices are slow


class LongformerAttention(Attention):
    """A band. Without parameters."""

    window: int = 256  # 2w ≥ 2, even: token t sees |t − s| ≤ w, window + 1 tokens

    self_attention_only = True
    size_option = "window"

    def __init__(self, **options: Any):
        super().__init__(**options)
        check_range("window", self.window, 2, max(2, 2 * (self.max_length - 1)))
        if self.window % 2:
            why = "window / 2 neighbours on each side"
            raise ValueError(f"window must be even ({why}), got {self.window}")

    def attend(self, query, key, value, mask, precision):
        mask = jnp.ones(len(key), bool) if mask is None else mask
        length = query.shape[0]
        margin = min(self.window // 2, length)  # w
        size = max(margin, _MIN_BLOCK)
        key = key * query.shape[-1] ** -0.5
        offsets = jnp.arange(size + 2 * margin)[None] - jnp.arange(size)[:, None]
        band = (offsets >= 0) & (offsets <= 2 * margin)  # [size, size + 2w]
        windows = partial(neighbourhoods, size=size, margin=margin)
        allowed = band[None] & windows(mask)[:, None]  # [C, size, size + 2w]
        of_blocks = jax.vmap(partial(attend, precision=precision))
        out = of_blocks(to_blocks(query, size), windows(key), windows(value), allowed)
        return out.reshape(-1, out.shape[-1])[:length]
