"""The matrix that Nyström attention applies: its factors, its rows, and the exact one.

Letters: T query length, S key length, H head dim, M landmarks, n valid tokens, R rows.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.landmarks import LANDMARKS, random_positions
from nystromformer.masks import find_query_mask, zero_masked
from nystromformer.nystrom import (
    FewTokens,
    choose_landmarks,
    find_few_tokens,
    identity_if_few,
    softmax_of_existing,
)
from nystromformer.pinv import PINVS
from nystromformer.precision import at_least_float32


def softmax_matrix(
    query: jax.Array, key: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """softmax(Q Kᵀ / √H), the matrix of exact attention.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = attend; None = all.

    Returns:
      [T, S] in at least float32; columns of excluded keys are 0, unless all are.
    """
    accumulation_dtype = at_least_float32(key.dtype)
    query = query.astype(accumulation_dtype)
    key = zero_masked(key, mask).astype(accumulation_dtype)
    scale = key.shape[-1] ** -0.5
    scores = jnp.matmul(query, key.T, precision="highest") * scale
    if mask is not None:
        scores = jnp.where(mask[None], scores, jnp.finfo(accumulation_dtype).min)
    return jax.nn.softmax(scores)


def nystrom_kernels(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    query_mask: jax.typing.ArrayLike | None = None,
    num_landmarks: int = 64,
    landmark_padding: str = "mask",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F = softmax(Q K̃ᵀ), A = softmax(Q̃ K̃ᵀ), B = softmax(Q̃ Kᵀ) of eq. (13).

    Args:
      query, key, mask, query_mask, num_landmarks, landmark_padding: as in
        `nystrom_factors`.
      landmarks: a name in LANDMARKS.
      landmark_seed: the seed of random landmarks.

    Returns:
      F [T, M], A [M, M] and B [M, S] in at least float32.
    """
    if num_landmarks >= key.shape[0]:
        # Attention is exact, and padding has no part in it.
        landmark_padding = "mask"
    key = zero_masked(key, mask)
    query_mask, _ = _find_query_mask(query_mask, mask, query, key)
    query_landmarks, key_landmarks, query_exists, key_exists = choose_landmarks(
        # Where the mask is False queries may be NaN.
        zero_masked(query, query_mask),
        key,
        mask,
        query_mask,
        num_landmarks=num_landmarks,
        landmark_padding=landmark_padding,
        make_landmarks=functools.partial(LANDMARKS[landmarks], seed=landmark_seed),
    )
    f = softmax_matrix(query, key_landmarks, key_exists)
    scores = jnp.matmul(query_landmarks, key_landmarks.T, precision="highest")
    a = softmax_of_existing(scores * key.shape[-1] ** -0.5, query_exists, key_exists)
    b = softmax_matrix(query_landmarks, key, mask)
    return f, a, b


def nystrom_factors(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    query_mask: jax.typing.ArrayLike | None = None,
    num_landmarks: int = 64,
    num_pinv_iters: int = 6,
    landmark_padding: str = "mask",
    pinv: str = "iterative",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F, Z and B, whose product F Z B is the [T, S] matrix that `nystrom` applies.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = attend; None = all.
      query_mask: bool that broadcasts to [T], True = the query counts in the landmarks
        of queries. None: with T = S this is self-attention and `mask` says it; with
        T ≠ S every query counts.
      num_landmarks: M.
      num_pinv_iters: the iterations towards the pseudo-inverse.
      landmark_padding: "mask" or "count", as in `nystrom`.
      pinv: a name in PINVS.
      landmarks: a name in LANDMARKS.
      landmark_seed: the seed of random landmarks.

    Returns:
      F [T, M], Z [M, M] and B [M, S] in at least float32. The product's rows need not
      sum to 1, nor its entries be positive; columns of excluded keys are 0, unless
      all keys are excluded.
    """
    query_mask, is_self_attention = _find_query_mask(query_mask, mask, query, key)
    if num_landmarks >= min(len(query), len(key)):
        return _exact_factors(query, key, mask, query_mask, num_landmarks)

    f, a, b = nystrom_kernels(
        query,
        key,
        mask,
        query_mask=query_mask,
        num_landmarks=num_landmarks,
        landmark_padding=landmark_padding,
        landmarks=landmarks,
        landmark_seed=landmark_seed,
    )
    z = PINVS[pinv](a, num_pinv_iters)

    # With n ≤ M valid tokens each of them is a landmark, and the product is exact.
    few_keys, few_queries = find_few_tokens(
        mask,
        query_mask,
        is_self_attention=is_self_attention,
        num_landmarks=num_landmarks,
        landmark_padding=landmark_padding,
    )
    z = identity_if_few(z, few_keys, few_queries)
    b = _own_positions_if_few(b, few_keys)
    f = _own_landmarks_if_few(f, few_queries, few_keys)
    return f, z, b


def _exact_factors(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    query_mask: jax.Array | None,
    num_landmarks: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F, Z and B for M ≥ T or M ≥ S: one is the exact matrix, the others identities."""
    matrix = softmax_matrix(query, key, mask)
    num_queries, num_keys = matrix.shape
    identity = jnp.eye(num_landmarks, dtype=matrix.dtype)
    if num_landmarks >= num_keys:
        f = jnp.pad(matrix, ((0, 0), (0, num_landmarks - num_keys)))
        return f, identity, identity[:, :num_keys]
    if query_mask is not None:
        # A query that does not count may be NaN, and 0 · NaN would reach all rows.
        may_stay = query_mask[:, None] | jnp.isfinite(matrix)
        matrix = jnp.where(may_stay, matrix, 0)
    b = jnp.pad(matrix, ((0, num_landmarks - num_queries), (0, 0)))
    return identity[:num_queries], identity, b


def _own_positions_if_few(b: jax.Array, few_keys: FewTokens | None) -> jax.Array:
    """B [M, S]; where each landmark is a key, its row is 1 at the key's position.

    Column i of F then holds the weights of the key that landmark i is.
    """
    if few_keys is None:
        return b
    positions = few_keys.tokens_of_landmarks()
    is_own_position = positions[:, None] == jnp.arange(b.shape[1])[None]
    return jnp.where(few_keys.holds(), is_own_position.astype(b.dtype), b)


def _own_landmarks_if_few(
    f: jax.Array, few_queries: FewTokens | None, few_keys: FewTokens | None
) -> jax.Array:
    """F [T, M]; where each landmark is a query, that query's row is 1 at the landmark.

    Row i of B is then the exact row of the query that landmark i is, unless keys are
    few as well, when the product is exact without this.
    """
    if few_queries is None:
        return f
    landmarks = few_queries.landmarks_of_tokens()
    is_own_landmark = landmarks[:, None] == jnp.arange(f.shape[1])[None]
    is_exact = few_queries.mask & few_queries.holds()
    if few_keys is not None:
        is_exact &= ~few_keys.holds()
    return jnp.where(is_exact[:, None], is_own_landmark.astype(f.dtype), f)


def _find_query_mask(
    query_mask: jax.typing.ArrayLike | None,
    mask: jax.Array | None,
    query: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array | None, bool]:
    """`find_query_mask` for a `query_mask` that broadcasts to [T]."""
    if query_mask is not None:
        query_mask = jnp.broadcast_to(query_mask, len(query))
    return find_query_mask(query_mask, mask, num_queries=len(query), num_keys=len(key))


def nystrom_rows(
    query: jax.Array,
    key: jax.Array,
    rows: jax.Array | Sequence[int] | slice,
    mask: jax.Array | None = None,
    **options: Any,
) -> jax.Array:
    """Rows of the matrix that `nystrom` applies, in O((T + S) · M + R · S · M).

    Row 0 of a sequence with [CLS] in front is what [CLS] attends to.

    Args:
      query: [T, H].
      key: [S, H].
      rows: positions [R], or a slice of them.
      mask: [S] bool, True = attend; None = all.
      **options: the options of `nystrom_factors`.

    Returns:
      [R, S] in at least float32; NaN for a position that does not exist.
    """
    f, z, b = nystrom_factors(query, key, mask, **options)
    if not isinstance(rows, slice):
        rows = jnp.asarray(rows)
    f_rows = f.at[rows].get(mode="fill", fill_value=jnp.nan)
    weights = jnp.matmul(f_rows, z, precision="highest")  # [R, M]
    return jnp.matmul(weights, b, precision="highest")


def standard_nystrom(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    seed: int = 0,
    pinv: str = "exact",
    num_pinv_iters: int = 6,
) -> jax.Array:
    """The Nyström method as it was before the paper: it samples S after the softmax.

    Ŝ = S[:, J] · S[J, J]⁺ · S[J, :] for M random tokens J (eqs. (4) to (6) of the
    paper). It needs all of S, which is why the paper samples queries and keys instead.

    Args:
      query: [S, H].
      key: [S, H], of the same tokens.
      mask: [S] bool, True = attend; None = all.
      num_landmarks: M.
      seed: the seed of the tokens J.
      pinv: a name in PINVS. "exact" is the method; "iterative" inverts only the large
        singular values of S[J, J], which regularises it.
      num_pinv_iters: the number of iterations with pinv="iterative".

    Returns:
      Ŝ [S, S] in at least float32. Rows of excluded queries have no meaning.
    """
    if mask is None:
        mask = jnp.ones(key.shape[0], bool)
    matrix = softmax_matrix(query, key, mask)
    positions = random_positions(mask, num_landmarks, seed)
    sample = functools.partial(jnp.take, indices=positions, mode="fill", fill_value=0)
    rows = sample(matrix, axis=0)  # [M, S]
    columns = sample(matrix, axis=1)  # [S, M]

    inverse = PINVS[pinv](sample(rows, axis=1), num_pinv_iters)
    middle = jnp.matmul(inverse, rows, precision="highest")
    return jnp.matmul(columns, middle, precision="highest")
