"""Self-attention in blocks: what longformer, bigbird and reformer share.

Each writes the attention of one head of one sequence in which a block of queries meets
a short list of keys, so L × the length of that list is the largest object.

Letters: B batch, L sequence length, N heads, H head dim, C blocks, each of T queries
that meet S keys.
"""

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.ops import at_least_float32


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
