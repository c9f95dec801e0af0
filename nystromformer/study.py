"""Beyond the paper: other landmarks and inverses, and the approximated matrix.

As for segment means only valid tokens count, and with n ≤ M valid tokens every one is a
landmark of its own, in the order of the sequence.

Letters: T query length, S key length, H head dim, M landmarks, R rows.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.nystrom import (
    check_options,
    iterative_pinv,
    nth_valid,
    segment_means,
)
from nystromformer.ops import at_least_float32, zeroed

Landmarks = Callable[..., tuple[jax.Array, jax.Array]]
Inverse = Callable[[jax.Array, int], jax.Array]

KMEANS_STEPS = 3
LANDMARKS = ("segment_means", "random", "kmeans", "farthest")
PINVS: dict[str, Inverse] = {
    "iterative": iterative_pinv,
    "exact": lambda a, _: jnp.linalg.pinv(a),  # LAPACK's
    "identity": lambda a, _: jnp.eye(a.shape[-1], dtype=a.dtype),  # the double softmax
}


def random_positions(mask: jax.Array, count: int, seed: int) -> jax.Array:
    """Of tokens of mask [S] drawn without replacement: [count] int, in their order.

    Each token draws a number that depends on the seed and on its rank among the valid
    ones alone, and the smallest win: neither padding nor other sequences matter. Where
    there are no more tokens stands S.
    """
    # Under vmap the draws of an rbg key would depend on those beside them.
    key = jax.random.key(seed, impl="threefry2x32")
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.cumsum(mask))
    # 32 bits even under x64: the same tokens in every precision.
    draws = jax.vmap(lambda key: jax.random.bits(key, dtype=jnp.uint32))(keys)
    winners = jnp.lexsort((draws, ~mask))[:count]  # valid ones first
    positions = jnp.sort(jnp.where(mask[winners], winners, len(mask)))
    fill = (0, count - len(winners))
    return jnp.pad(positions, fill, constant_values=len(mask))


def farthest_positions(
    mask: jax.Array, count: int, seed: int, *, x: jax.Array
) -> jax.Array:
    """Of tokens by farthest-point sampling in x [S, H]; else as `random_positions`.

    The first is drawn. Each next one is that whose nearest chosen token is farthest
    away. The choice carries no gradient.
    """
    wide = at_least_float32(x.dtype)
    x = jax.lax.stop_gradient(x).astype(wide)

    def choose(i: jax.Array, so_far: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        positions, nearest = so_far
        winner = jnp.argmax(nearest)
        position = jnp.where(nearest[winner] < 0, len(mask), winner)
        distance = jnp.square(x - x[winner][None]).sum(-1)
        nearest = jnp.where(nearest < 0, -1, jnp.minimum(nearest, distance))
        return positions.at[i].set(position), nearest.at[winner].set(-1)

    # Squared distances to the nearest chosen token; below 0: not to be chosen.
    nearest = jnp.where(mask, jnp.finfo(wide).max, -1)
    nearest = nearest.at[random_positions(mask, 1, seed)].set(jnp.inf, mode="drop")
    start = jnp.full(count, len(mask)), nearest
    positions, _ = jax.lax.fori_loop(0, count, choose, start)
    return jnp.sort(positions)


def tokens(
    x: jax.Array,
    num_landmarks: int,
    mask: jax.Array | None,
    *,
    seed: int,
    farthest: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """As `segment_means`, but of M tokens of x, in the order of the sequence.

    They are drawn at random, the same for queries, keys and heads, or `farthest` from
    each other.
    """
    choose = partial(farthest_positions, x=x) if farthest else random_positions
    mask = jnp.ones(len(x), bool) if mask is None else mask
    positions = choose(mask, num_landmarks, seed)
    chosen = jnp.take(x, positions, axis=0, mode="fill", fill_value=0)  # [M, H]
    return chosen.astype(at_least_float32(x.dtype)), positions < len(x)


def kmeans(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """A few steps of Lloyd's algorithm from the `segment_means`, which stay if n ≤ M.

    Which mean is nearest carries no gradient, as argmin has none; the means do. A
    cluster that loses all its tokens keeps its mean.
    """
    start, exists = segment_means(x, num_landmarks, mask)
    means, wide = start, start.dtype
    num_valid = x.shape[0] if mask is None else mask.sum()
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
    return jnp.where(num_valid > num_landmarks, means, start), exists


def landmarks_by(name: str, seed: int = 0) -> Landmarks:
    """The function (x, num_landmarks, mask) -> landmarks of a name in LANDMARKS."""
    if name not in LANDMARKS:
        raise ValueError(f"landmarks must be one of {LANDMARKS}, got {name!r}")
    if name in ("random", "farthest"):
        return partial(tokens, seed=seed, farthest=name == "farthest")
    return kmeans if name == "kmeans" else segment_means


def pinv_by(name: str) -> Inverse:
    """The function (A, num_iters) -> Z of a name in PINVS."""
    if name not in PINVS:
        raise ValueError(f"pinv must be one of {(*PINVS,)}, got {name!r}")
    return PINVS[name]


def softmax_matrix(
    query: jax.Array, key: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """softmax(Q Kᵀ / √H) of one head, [T, S] in at least float32.

    query [T, H], key [S, H], mask [S] bool, True = attend; other columns are 0.
    """
    wide = at_least_float32(key.dtype)
    query, key = query.astype(wide), zeroed(key, mask).astype(wide)
    scores = jnp.matmul(query, key.T, precision="highest") * key.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask[None], scores, jnp.finfo(wide).min)
    return jax.nn.softmax(scores)


def nystrom_kernels(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int = 64,
    landmark_padding: str = "mask",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F = softmax(Q K̃ᵀ), A = softmax(Q̃ K̃ᵀ), B = softmax(Q̃ Kᵀ) of eq. (13).

    Arguments and errors are those of `nystrom_factors`; [T, M], [M, M] and [M, S] in at
    least float32. Where no more tokens than M count, attention is exact, and A and B
    are no part of it.
    """
    check_options(num_landmarks=num_landmarks, landmark_padding=landmark_padding)
    choose = landmarks_by(landmarks, landmark_seed)
    counts = mask if landmark_padding == "mask" or num_landmarks >= len(key) else None
    of_queries = None
    if len(query) == len(key):
        query, of_queries = zeroed(query, mask), counts
    key = zeroed(key, mask)
    query_landmarks, _ = choose(query, num_landmarks, of_queries)
    key_landmarks, exists = choose(key, num_landmarks, counts)
    return (
        softmax_matrix(query, key_landmarks, exists),
        softmax_matrix(query_landmarks, key_landmarks),
        softmax_matrix(query_landmarks, key, mask),
    )


def nystrom_factors(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int = 64,
    num_pinv_iters: int = 6,
    landmark_padding: str = "mask",
    pinv: str = "iterative",
    **landmarks: Any,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F, Z and B, whose product F Z B is the [T, S] matrix that `nystrom` applies.

    Args:
      query, key: [T, H] and [S, H].
      mask: [S] bool, True = attend; None = all. With T = S for the queries too.
      num_landmarks, num_pinv_iters, landmark_padding: as for `nystrom`.
      pinv: of PINVS.
      **landmarks: `landmarks` of LANDMARKS, and `landmark_seed`.

    Returns:
      F [T, M], Z [M, M] and B [M, S] in at least float32. Rows of the product need not
      sum to 1, nor its entries be positive; columns of excluded keys are 0. Where
      attention is exact (n ≤ M, T ≤ M) so is the product.
    """
    check_options(num_landmarks=num_landmarks, num_pinv_iters=num_pinv_iters)
    sizes = {"num_landmarks": num_landmarks, "landmark_padding": landmark_padding}
    f, a, b = nystrom_kernels(query, key, mask, **sizes, **landmarks)
    z, eye = pinv_by(pinv)(a, num_pinv_iters), jnp.eye(len(a), dtype=a.dtype)
    if len(query) <= num_landmarks < len(key):
        fill = ((0, num_landmarks - len(query)), (0, 0))
        rows = jnp.pad(softmax_matrix(query, key, mask), fill)
        return jnp.eye(*f.shape, dtype=f.dtype), eye, rows
    if num_landmarks < len(key) and (mask is None or landmark_padding == "count"):
        return f, z, b
    mask = jnp.ones(len(key), bool) if mask is None else mask
    is_exact = mask.sum() <= num_landmarks  # landmark i is the i-th token that counts
    tokens = nth_valid(mask, num_landmarks)[:, None] == jnp.arange(len(key))[None]
    return f, jnp.where(is_exact, eye, z), jnp.where(is_exact, tokens, b)


def nystrom_rows(
    query: jax.Array,
    key: jax.Array,
    rows: jax.Array | slice,
    mask: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """Rows [R, S] of the matrix that `nystrom` applies, in O((T + S) · M + R · S · M).

    Row 0 of a sequence with [CLS] in front is what [CLS] attends to. Rows are positions
    [R] or a slice; the rest as for `nystrom_factors`.
    """
    f, z, b = nystrom_factors(query, key, mask, **options)
    product = jnp.matmul(f[rows], z, precision="highest")
    return jnp.matmul(product, b, precision="highest")


def standard_nystrom(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    seed: int = 0,
) -> jax.Array:
    """The Nyström method as it was, eqs. (4)-(6): columns and rows sampled of S itself.

    Ŝ = S[:, J] · S[J, J]⁺ · S[J, :] [S, S] for M random tokens J, the same for both. It
    needs all of S, which landmarks before the softmax avoid. Rows of excluded queries
    have no meaning.
    """
    matrix = softmax_matrix(query, key, mask)
    mask = jnp.ones(len(key), bool) if mask is None else mask
    at = random_positions(mask, num_landmarks, seed)
    sampled = jnp.take(matrix, at, axis=0, mode="fill", fill_value=0)  # [M, S]
    columns = jnp.take(matrix, at, axis=1, mode="fill", fill_value=0)  # [S, M]
    a = jnp.take(sampled, at, axis=1, mode="fill", fill_value=0)
    middle = jnp.matmul(jnp.linalg.pinv(a), sampled, precision="highest")
    return jnp.matmul(columns, middle, precision="highest")
