"""Other landmarks than segment means, to study what the choice matters.

The supplement of the paper (Fig. 1) compares segment means with tokens drawn at random
and with k-means. As for segment means only valid tokens count, and with n ≤ M valid
tokens every one is a landmark of its own, in the order of the sequence.

Letters: S length, H head dim, M landmarks.
"""

import jax
import jax.numpy as jnp

from nystromformer.precision import at_least_float32

KMEANS_STEPS = 3


def random_tokens(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None, seed: int
) -> tuple[jax.Array, jax.Array]:
    """M tokens drawn without replacement, the same for queries, keys and all heads.

    Each token draws a number that depends on the seed and on its rank among the valid
    ones alone, and the M smallest win: neither padding nor other sequences matter.

    Args:
      x: [S, H].
      num_landmarks: M.
      mask: [S] bool, True = counts; None = all.
      seed: of the draw.

    Returns:
      landmarks [M, H] in at least float32, in the order of the sequence and zero where
      there are no more tokens, and exists [M] bool.
    """
    length = x.shape[0]
    if mask is None:
        mask = jnp.ones(length, bool)
    # Under vmap the draws of an rbg key would depend on those beside them.
    key = jax.random.key(seed, impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.cumsum(mask))
    # 32 bits even under x64: the same tokens in every precision.
    draws = jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(keys)
    winners = jnp.lexsort((draws, ~mask))[:num_landmarks]  # valid ones first
    positions = jnp.sort(jnp.where(mask[winners], winners, length))
    positions = jnp.pad(
        positions, (0, num_landmarks - len(winners)), constant_values=length
    )
    tokens = jnp.take(x, positions, axis=0, mode="fill", fill_value=0)  # [M, H]
    wide = at_least_float32(x.dtype)
    return tokens.astype(wide), positions < length


def kmeans(
    x: jax.Array, means: jax.Array, exists: jax.Array, mask: jax.Array | None
) -> jax.Array:
    """Lloyd's algorithm, a few steps from the segment means.

    Which mean is nearest carries no gradient, as argmin has none; the means do. A
    cluster that loses all its tokens keeps its mean.

    Args:
      x: [S, H]; rows that the mask excludes must be finite.
      means: [M, H] where to start.
      exists: [M] bool, which of them are clusters.
      mask: [S] bool, True = counts; None = all.

    Returns:
      [M, H] in at least float32; the means as given where tokens are no more than M.
    """
    num_landmarks = means.shape[0]
    num_valid = x.shape[0] if mask is None else mask.sum()
    start, wide = means, means.dtype
    for _ in range(KMEANS_STEPS):
        # |x − c|² less |x|², which is the same for all c.
        distances = jnp.square(means).sum(1)[None] - 2 * jnp.matmul(
            x.astype(wide), means.T, precision="highest"
        )  # [S, M]
        nearest = jnp.where(exists[None], distances, jnp.inf).argmin(1)
        if mask is not None:
            nearest = jnp.where(mask, nearest, num_landmarks)
        member = nearest[None] == jnp.arange(num_landmarks)[:, None]  # [M, S]
        counts = member.sum(1)[:, None]
        sums = jnp.matmul(member.astype(wide), x.astype(wide), precision="highest")
        means = jnp.where(counts > 0, sums / jnp.maximum(counts, 1), means)
    return jnp.where(num_valid > num_landmarks, means, start)
