"""Landmarks: the paper's segment means and what may take their place.

Random tokens and k-means are in section A of the paper's supplement. As with segment
means only valid tokens take part, and with n ≤ M valid tokens each one is a landmark,
in the order of the sequence.

Letters: S sequence length, H head dim, M landmarks, n valid tokens.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nystromformer.masks import ranks
from nystromformer.nystrom import segment_means
from nystromformer.precision import at_least_float32

KMEANS_STEPS = 3


def random_positions(mask: jax.Array, count: int, seed: int) -> jax.Array:
    """Samples `count` valid positions of a sequence, in order.

    Each token draws a number from the seed and its rank among the valid tokens, and the
    smallest numbers win: padding and other sequences change nothing.

    Args:
      mask: [S] bool, True = valid.
      count: the number of positions.
      seed: the seed of the draws.

    Returns:
      [count] sorted positions; S in the last places where too few tokens are valid.
    """
    length = mask.shape[0]
    # Under vmap the draws of an rbg key would depend on those beside them.
    key = jax.random.key(seed, impl="threefry2x32")

    def draw(rank: jax.Array) -> jax.Array:
        # 32 bits in every precision, so that x64 samples the same tokens.
        return jax.random.bits(jax.random.fold_in(key, rank), dtype=jnp.uint32)

    draws = jax.vmap(draw)(ranks(mask))
    winners = jnp.lexsort((draws, ~mask))[:count]  # Valid tokens are sorted first.
    positions = jnp.sort(jnp.where(mask[winners], winners, length))
    num_missing = count - winners.shape[0]
    return jnp.pad(positions, (0, num_missing), constant_values=length)


def random_tokens(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None, seed: int
) -> tuple[jax.Array, jax.Array]:
    """Takes M random tokens of x; queries, keys and heads share the positions.

    Arguments and results are those of `segment_means`, and a seed.
    """
    length = x.shape[0]
    if mask is None:
        mask = jnp.ones(length, bool)
    positions = random_positions(mask, num_landmarks, seed)
    tokens = jnp.take(x, positions, axis=0, mode="fill", fill_value=0)  # [M, H]
    return tokens.astype(at_least_float32(x.dtype)), positions < length


def kmeans(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Takes a few steps of Lloyd's algorithm from the `segment_means`.

    The assignment carries no gradient, as argmin has none; the means do. A cluster that
    loses all its tokens keeps its mean. With n ≤ M the segment means stay.

    Arguments and results are those of `segment_means`.
    """
    first_means, exists = segment_means(x, num_landmarks, mask)
    if mask is None:
        mask = jnp.ones(x.shape[0], bool)
    tokens = x.astype(first_means.dtype)
    means = first_means
    for _ in range(KMEANS_STEPS):
        # |x − c|² without |x|², which is the same for all c.
        products = jnp.matmul(tokens, means.T, precision="highest")
        distances = jnp.square(means).sum(1)[None] - 2 * products  # [S, M]
        nearest = jnp.where(exists[None], distances, jnp.inf).argmin(1)

        is_member = nearest[None] == jnp.arange(num_landmarks)[:, None]  # [M, S]
        is_member &= mask[None]
        sizes = is_member.sum(1, dtype=tokens.dtype)[:, None]
        members = is_member.astype(tokens.dtype)
        sums = jnp.matmul(members, tokens, precision="highest")
        means = jnp.where(sizes > 0, sums / jnp.maximum(sizes, 1), means)
    return jnp.where(mask.sum() > num_landmarks, means, first_means), exists


# (x [S, H], num_landmarks, mask [S] or None, seed) -> as `segment_means`.
LANDMARKS: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
    "segment_means": lambda x, count, mask, seed: segment_means(x, count, mask),
    "random": random_tokens,
    "kmeans": lambda x, count, mask, seed: kmeans(x, count, mask),
}
