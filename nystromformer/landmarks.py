"""Other landmarks than the paper's segment means, and other inverses.

As with segment means only valid tokens take part, and with n ≤ M valid tokens each one
is a landmark, in the order of the sequence.

Letters: S sequence length, H head dim, M landmarks, n valid tokens.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from nystromformer.nystrom import iterative_pinv, segment_means
from nystromformer.ops import at_least_float32

KMEANS_STEPS = 3


def random_positions(mask: jax.Array, count: int, seed: int) -> jax.Array:
    """Samples `count` valid positions of mask [S], sorted; S where there are too few.

    Each token draws a number by the seed and its rank among the valid ones, and the
    smallest win: padding and other sequences change nothing.
    """

    def draw(rank: jax.Array) -> jax.Array:  # 32 bits in every precision
        return jax.random.bits(jax.random.fold_in(key, rank), dtype=jnp.uint32)

    # Under vmap the draws of an rbg key would depend on those beside them.
    key = jax.random.key(seed, impl="threefry2x32")
    draws = jax.vmap(draw)(jnp.cumsum(mask))
    winners = jnp.lexsort((draws, ~mask))[:count]  # valid ones first
    positions = jnp.sort(jnp.where(mask[winners], winners, len(mask)))
    return jnp.pad(positions, (0, count - len(winners)), constant_values=len(mask))


def random_tokens(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None, seed: int
) -> tuple[jax.Array, jax.Array]:
    """M tokens of x drawn at random; queries, keys and heads share the positions."""
    if mask is None:
        mask = jnp.ones(len(x), bool)
    positions = random_positions(mask, num_landmarks, seed)
    tokens = jnp.take(x, positions, axis=0, mode="fill", fill_value=0)  # [M, H]
    return tokens.astype(at_least_float32(x.dtype)), positions < len(x)


def kmeans(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """A few steps of Lloyd's algorithm from the `segment_means`, which stay if n ≤ M.

    The assignment carries no gradient, as argmin has none; the means do. A cluster that
    loses all its tokens keeps its mean.
    """
    start, exists = segment_means(x, num_landmarks, mask)
    if mask is None:
        mask = jnp.ones(len(x), bool)
    means, wide = start, start.dtype
    for _ in range(KMEANS_STEPS):
        # |x − c|² less |x|², which is the same for all c.
        products = jnp.matmul(x.astype(wide), means.T, precision="highest")
        distances = jnp.square(means).sum(1)[None] - 2 * products  # [S, M]
        nearest = jnp.where(exists[None], distances, jnp.inf).argmin(1)
        member = nearest[None] == jnp.arange(num_landmarks)[:, None]  # [M, S]
        member &= mask[None]
        sizes = member.sum(1, dtype=wide)[:, None]
        sums = jnp.matmul(member.astype(wide), x.astype(wide), precision="highest")
        means = jnp.where(sizes > 0, sums / jnp.maximum(sizes, 1), means)
    return jnp.where(mask.sum() > num_landmarks, means, start), exists


# (x [S, H], num_landmarks, mask [S] or None, seed) -> as `segment_means`.
LANDMARKS: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
    "segment_means": lambda x, count, mask, seed: segment_means(x, count, mask),
    "random": random_tokens,
    "kmeans": lambda x, count, mask, seed: kmeans(x, count, mask),
}
# (A [M, M], num_iters) -> Z [M, M].
PINVS: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "iterative": iterative_pinv,
    "exact": lambda a, num_iters: jnp.linalg.pinv(a),  # LAPACK's
    # Without an inverse in the middle: the double softmax.
    "identity": lambda a, num_iters: jnp.eye(a.shape[-1], dtype=a.dtype),
}
