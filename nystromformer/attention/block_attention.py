"""Self-attention in blocks: what longformer, bigbird and reformer share.

Each writes the attention of one head of one sequence in which a block of queries meets
a short list of keys, so L × the length of that list is the largest object.

Letters: B batch, L sequence length, N heads, H head dim, C blocks, each of T queries
that meet S keys.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.masking import admit
from nystromformer.precision import at_least_float32


def forbid(allowed: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The bias of `attend_blocks` for a bool array: 0, or so low that weights are 0."""
    return jnp.where(allowed, 0, jnp.finfo(dtype).min)


def attend_blocks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    precision: jax.lax.PrecisionLike,
) -> tuple[jax.Array, jax.Array]:
    """softmax(Q Kᵀ + bias) V in every block, normalised after the product with V.

    Args:
      query: [C, T, H].
      key: [C, S, H].
      value: [C, S, H].
      bias: [C, T or 1, S] in at least float32, finite.
      precision: of both products; they accumulate in at least float32.

    Returns:
      [C, T, H] and z = log Σ exp(scores) [C, T], in at least float32.
    """
    wide = at_least_float32(query.dtype)
    scores = bias + jnp.einsum(
        "cth,csh->cts", query, key, precision=precision, preferred_element_type=wide
    )
    largest = lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - largest)  # [C, T, S]
    product = jnp.einsum(
        "cts,csh->cth",
        weights.astype(value.dtype),
        value,
        precision=precision,
        preferred_element_type=wide,
    )
    total = weights.sum(-1, keepdims=True)
    return product / total, (largest + jnp.log(total))[:, :, 0]


def self_attention(
    name: str,
    one_head: Callable[..., jax.Array],
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    *per_head: jax.Array,
    dropout_rate: float,
    deterministic: bool,
    dtype: jax.typing.DTypeLike | None,
    module: object,
    is_causal: bool,
) -> jax.Array:
    """`one_head` lifted over heads and batch, after every check that shapes allow.

    Args:
      name: of the attention, for the messages.
      one_head: (query [L, H], key [L, H], value [L, H], mask [L] bool, *per_head) ->
        [L, H]; what stands at padding has been zeroed.
      query: [B, L, N, H].
      key: [B, L, N, H].
      value: [B, L, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, L], True = attend.
      *per_head: [N, ...], what each head brings along.
      dropout_rate: must be 0 unless deterministic.
      deterministic: True = no dropout.
      dtype: of the computation and the output; None = the inputs'.
      module: must be None.
      is_causal: must be False.

    Returns:
      [B, L, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured, T ≠ S among it.
    """
    query, key, value, mask = admit(
        name,
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
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            f"attention {name!r} is self-attention and so needs T = S, got "
            f"{query.shape} and {key.shape}"
        )
    if mask is None:
        mask = jnp.ones(key.shape[:2], bool)
    in_axes = (1, 1, 1, None) + (0,) * len(per_head)
    over_heads = jax.vmap(one_head, in_axes=in_axes, out_axes=1)
    over_batch = jax.vmap(over_heads, in_axes=(0,) * 4 + (None,) * len(per_head))
    return over_batch(query, key, value, mask, *per_head).astype(value.dtype)
