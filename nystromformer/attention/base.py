"""The one signature of every attention, and what the encoder may ask of it."""

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
from flax import nnx


def check_size(name: str, value: int, largest: int, max_length: int) -> None:
    """Raises ValueError for more than sequences up to max_length have a use for."""
    if value > largest:
        raise ValueError(
            f"{name} must be at most {largest} for max_length {max_length}, got {value}"
        )


def check_seed(name: str, seed: int) -> None:
    """Raises ValueError for what is no seed of a random key."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"{name} must be from 0 to 2⁶³ − 1, got {seed}")


class Attention(nnx.Module):
    """Base of every attention in the table.

    num_projections: how many projections of x the attention uses: 3 = query, key and
      value; 2 = one for query and key, and value; 1 = value. So none goes unused.
    defaults: the options of the paper's experiments, which configs and benchmarks start
      from; every option of `__init__` stands there.
    size_option: the option that says how large it is, as 64 in "nystrom-64".
    shared_across_layers: one instance serves all layers: the encoder holds it, and its
      blocks get it at every call, so that no variable is in the tree twice.
    """

    num_projections = 3
    shared_across_layers = False
    defaults: ClassVar[Mapping[str, Any]] = {}
    size_option: ClassVar[str | None] = None

    def __init__(
        self, *, num_heads: int, head_dim: int, max_length: int, rngs: nnx.Rngs
    ):
        """N heads of H, sequences up to max_length; subclasses add their options."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: nnx.Module | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends; the flax keywords are named because linen passes only what it sees.

        Args:
          query: [B, T, N, H].
          key: [B, S, N, H].
          value: [B, S, N, H].
          bias: added to the scores, or None.
          mask: bool, True = attend, broadcastable to [B, 1, 1, S] (exact attention
            takes [B, N, T, S] too).
          dropout_rng, dropout_rate, broadcast_dropout, deterministic: dropout on the
            attention weights, where there are any.
          dtype: of the large products and the output; None = the inputs'.
          precision: of the large products.
          module: where to sow the attention weights, or None.
          is_causal: query t sees only keys ≤ t.

        Returns:
          [B, T, N, H] in dtype.

        Raises:
          ValueError: for what this attention cannot honour.
        """
        return self.attend(
            query,
            key,
            value,
            bias,
            mask,
            dropout_rng=dropout_rng,
            dropout_rate=dropout_rate,
            broadcast_dropout=broadcast_dropout,
            deterministic=deterministic,
            dtype=dtype,
            precision=precision,
            module=module,
            is_causal=is_causal,
        )

    def attend(self, *inputs: jax.Array | None, **flax: Any) -> jax.Array:
        """What a subclass defines: its plain function with this module's options.

        Args:
          *inputs: query, key, value, bias and mask of `__call__`.
          **flax: its keywords, all of them.
        """
        raise NotImplementedError
