"""Alternatives to the paper's segment means and to its iterative inverse.

Random tokens and k-means are in section A of the paper's supplement, and the exact
inverse is in its section B. The identity in place of the inverse is in neither.

As with segment means only valid tokens take part, and with n ≤ M valid tokens each one
is a landmark, in the order of the sequence.

Letters: S sequence length, H head dim, M landmarks, n valid tokens.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.masks import ranks
from nystromformer.nystrom import iterative_pinv, segment_means
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


@jax.custom_jvp
def exact_pinv(a: jax.Array) -> jax.Array:
    """Computes the pseudo-inverse A⁺ by singular values; on a CPU one after another.

    On a CPU jaxlib 0.10.2 spreads a batch over the threads that compute the program,
    and waits for them. Two batches can be computed at once, such as those of two layers
    under `jax.checkpoint`, and then may wait for each other for ever. A single matrix
    is computed by the thread that needs it.

    Args:
      a: [..., M, S].

    Returns:
      [..., S, M].
    """
    invert = _pinv_of_matrix
    for _ in range(a.ndim - 2):
        invert = jax.vmap(invert)
    return invert(a)


@jax.custom_batching.custom_vmap
def _pinv_of_matrix(a: jax.Array) -> jax.Array:
    return jnp.linalg.pinv(a)


@_pinv_of_matrix.def_vmap
def _pinv_of_batch(
    axis_size: int, in_batched: list[bool], a: jax.Array
) -> tuple[jax.Array, bool]:
    return _pinv_of_each(a), True


@jax.jit
def _pinv_of_each(a: jax.Array) -> jax.Array:
    """A⁺ of each matrix [M, S] of a batch.

    Without the `jit` here, a caller that compiles nothing would compile the loop anew
    at each call.
    """
    return lax.platform_dependent(
        a, cpu=lambda a: lax.map(_pinv_of_matrix, a), default=jnp.linalg.pinv
    )


@exact_pinv.defjvp
@jax.default_matmul_precision("highest")
def _differentiate_pinv(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """dZ = −Z dA Z + Z Zᵀ dAᵀ (I − A Z) + (I − Z A) dAᵀ Zᵀ Z, with Z = A⁺.

    Golub and Pereyra, SIAM Journal on Numerical Analysis 10 (1973).
    """
    (a,) = primals
    (da,) = tangents
    z = exact_pinv(a)
    left = z @ z.mT @ da.mT
    right = da.mT @ z.mT @ z
    return z, left - left @ a @ z + right - z @ a @ right - z @ da @ z


# (x [S, H], num_landmarks, mask [S] or None, seed) -> as `segment_means`.
LANDMARKS: dict[str, Callable[..., tuple[jax.Array, jax.Array]]] = {
    "segment_means": lambda x, count, mask, seed: segment_means(x, count, mask),
    "random": random_tokens,
    "kmeans": lambda x, count, mask, seed: kmeans(x, count, mask),
}
# (A [M, M], num_iters) -> Z [M, M]. The identity stands for no inverse at all, the
# double softmax.
PINVS: dict[str, Callable[[jax.Array, int], jax.Array]] = {
    "iterative": iterative_pinv,
    "exact": lambda a, num_iters: exact_pinv(a),
    "identity": lambda a, num_iters: jnp.eye(a.shape[-1], dtype=a.dtype),
}
