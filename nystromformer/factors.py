"""The approximated matrix itself: its factors, its rows, and the exact one.

Letters: T query length, S key length, H head dim, M landmarks, R rows.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.blocks import nth_valid
from nystromformer.landmarks import LANDMARKS, PINVS, random_positions
from nystromformer.ops import at_least_float32, zeroed


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
    cross_attention: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F = softmax(Q K̃ᵀ), A = softmax(Q̃ K̃ᵀ), B = softmax(Q̃ Kᵀ) of eq. (13).

    Arguments as for `nystrom_factors`; [T, M], [M, M] and [M, S] in at least float32.
    """
    choose = partial(LANDMARKS[landmarks], seed=landmark_seed)
    published = landmark_padding == "count" and num_landmarks < len(key)
    key_mask = None if published else mask
    key = zeroed(key, mask)
    if len(query) == len(key) and not cross_attention:
        valid_queries = zeroed(query, mask)
        query_landmarks, _ = choose(valid_queries, num_landmarks, key_mask)
    else:
        query_landmarks, _ = choose(query, num_landmarks, None)
    key_landmarks, exists = choose(key, num_landmarks, key_mask)
    f = softmax_matrix(query, key_landmarks, exists)
    a = softmax_matrix(query_landmarks, key_landmarks)
    return f, a, softmax_matrix(query_landmarks, key, mask)


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
      mask: [S] bool, True = attend; None = all. With T = S it also says which queries
        make landmarks, unless in cross attention.
      num_landmarks, num_pinv_iters, landmark_padding: as for `nystrom`.
      pinv: a name in PINVS.
      **landmarks: `landmarks`, a name in LANDMARKS, `landmark_seed`, and
        `cross_attention`, as for `nystrom`.

    Returns:
      F [T, M], Z [M, M] and B [M, S] in at least float32. The product's rows need not
      sum to 1, nor its entries be positive; columns of excluded keys are 0.
    """
    sizes = {"num_landmarks": num_landmarks, "landmark_padding": landmark_padding}
    f, a, b = nystrom_kernels(query, key, mask, **sizes, **landmarks)
    z, eye = PINVS[pinv](a, num_pinv_iters), jnp.eye(len(a), dtype=a.dtype)
    if len(query) <= num_landmarks < len(key):
        fill = ((0, num_landmarks - len(query)), (0, 0))
        rows = jnp.pad(softmax_matrix(query, key, mask), fill)
        return jnp.eye(*f.shape, dtype=f.dtype), eye, rows
    if num_landmarks < len(key) and (mask is None or landmark_padding == "count"):
        return f, z, b
    if mask is None:
        mask = jnp.ones(len(key), bool)
    is_exact = mask.sum() <= num_landmarks  # landmark i is the i-th valid token
    tokens = nth_valid(mask, num_landmarks)[:, None] == jnp.arange(len(key))[None]
    return f, jnp.where(is_exact, eye, z), jnp.where(is_exact, tokens, b)


def nystrom_rows(
    query: jax.Array,
    key: jax.Array,
    rows: jax.Array | Sequence[int] | slice,
    mask: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """Rows [R, S] of the matrix that `nystrom` applies, in O((T + S) · M + R · S · M).

    Row 0 of a sequence with [CLS] in front is what [CLS] attends to. Rows are positions
    [R] or a slice, and NaN for a position that does not exist; see `nystrom_factors`.
    """
    f, z, b = nystrom_factors(query, key, mask, **options)
    rows = rows if isinstance(rows, slice) else jnp.asarray(rows)
    chosen = f.at[rows].get(mode="fill", fill_value=jnp.nan)
    weights = jnp.matmul(chosen, z, precision="highest")  # [R, M]
    return jnp.matmul(weights, b, precision="highest")


def standard_nystrom(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    seed: int = 0,
) -> jax.Array:
    """The Nyström method as it was before the paper: it samples S after the softmax.

    Ŝ = S[:, J] · S[J, J]⁺ · S[J, :] for M random tokens J (eqs. (4) to (6) of the
    paper). It needs all of S, which is why the paper samples queries and keys instead.

    Args:
      query, key: [S, H], of the same tokens.
      mask: [S] bool, True = attend; None = all.
      num_landmarks: M.
      seed: of the tokens J.

    Returns:
      Ŝ [S, S] in at least float32. Rows of excluded queries have no meaning.
    """
    if mask is None:
        mask = jnp.ones(len(key), bool)
    matrix = softmax_matrix(query, key, mask)
    positions = random_positions(mask, num_landmarks, seed)
    sample = partial(jnp.take, indices=positions, mode="fill", fill_value=0)
    rows = sample(matrix, axis=0)  # [M, S]
    columns = sample(matrix, axis=1)  # [S, M]

    inverse = jnp.linalg.pinv(sample(rows, axis=1))
    middle = jnp.matmul(inverse, rows, precision="highest")
    return jnp.matmul(columns, middle, precision="highest")
