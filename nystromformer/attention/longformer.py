"""Longformer: a sliding window over the sequence.

Beltagy et al., "Longformer: The Long-Document Transformer", 2020. With w = window / 2,
token t attends to |t − s| ≤ w, 2w + 1 tokens, in O(L · window) memory. The window is
the same in every layer, and there are no global tokens, as on the LRA.
"""

from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.attention.options import CommonArguments
from nystromformer.blocks import to_blocks, to_blocks_with_margins
from nystromformer.dot_product import attend
from nystromformer.validation import check_range

# The least tokens of a block of queries; smaller matrices are slow.
_MIN_BLOCK = 32


class LongformerAttention(Attention):
    """A band. Without parameters."""

    self_attention_only = True
    size_option = "window"

    def __init__(self, *, window: int = 256, **common: Unpack[CommonArguments]):
        """Makes the attention.

        Args:
          window: 2w ≥ 2, even: token t attends to |t − s| ≤ w, window + 1 tokens.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an odd window, or one that reaches further than max_length.
        """
        super().__init__(**common)
        cause = f"max_length={self.max_length}"
        check_range("window", window, 2, max(2, 2 * (self.max_length - 1)), cause)
        if window % 2:
            raise ValueError(
                "window must be even (window / 2 neighbours on each side), got "
                f"{window}"
            )
        self.window = window

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        length = query.shape[0]
        if mask is None:
            mask = jnp.ones(length, bool)
        key = key * query.shape[-1] ** -0.5
        margin = min(self.window // 2, length)  # w
        size = max(margin, _MIN_BLOCK)

        # Query t of a block sees the columns t to t + 2w of the block with its margins.
        columns = jnp.arange(size + 2 * margin)[None]
        offsets = columns - jnp.arange(size)[:, None]
        band = (offsets >= 0) & (offsets <= 2 * margin)  # [size, size + 2w]
        is_valid = to_blocks_with_margins(mask, size, margin)  # [C, size + 2w]
        is_seen = band[None] & is_valid[:, None]  # [C, size, size + 2w]

        attend_blocks = jax.vmap(partial(attend, precision=precision))
        out = attend_blocks(
            to_blocks(query, size),
            to_blocks_with_margins(key, size, margin),
            to_blocks_with_margins(value, size, margin),
            is_seen,
        )
        return out.reshape(-1, out.shape[-1])[:length]
