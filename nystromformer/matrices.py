"""The [T, S] matrices behind softmax and Nyström attention, for those who want to look.

For analysis only: what training computes never forms them.

Letters: T query length, S key length, H head dim, M landmarks; F, Z and B are those
of the paper's F̃ A⁺ B̃.
"""

from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.nystrom import (
    at_least_float32,
    attend,
    check_options,
    inverse_by,
    landmarks_by,
    nth_valid,
)


def softmax_matrix(
    query: jax.Array, key: jax.Array, mask: jax.Array | None = None
) -> jax.Array:
    """softmax(Q Kᵀ / √H) of one head.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = attend; None = all.

    Returns:
      [T, S] in at least float32; rows sum to 1, columns of excluded keys are 0.
    """
    if mask is not None:
        key = jnp.where(mask[:, None], key, 0)
    wide = at_least_float32(key.dtype)
    scaled = key.astype(wide) * key.shape[-1] ** -0.5
    everything = jnp.eye(key.shape[0], dtype=wide)  # attention to I is the matrix
    return attend(query.astype(wide), scaled, everything, mask, precision="highest")


def nystrom_factors(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    num_pinv_iters: int = 6,
    segments: str = "valid",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
    inverse: str = "iterative",
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The factors of Nyström attention of one head: F Z B V is `nystrom(Q, K, V)`.

    Where M ≥ n, the number of valid keys, makes it exact attention, F holds the columns
    of the valid keys, Z is I, and B picks these keys.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = attend; None = all.
      num_landmarks, …: as for `nystrom`.

    Returns:
      F = softmax(Q K̃ᵀ / √H) [T, M], Z [M, M] and B = softmax(Q̃ Kᵀ / √H) [M, S], in at
      least float32; where M ≥ T or S, M is S.

    Raises:
      ValueError: for options that make no sense.
    """
    check_options(
        num_landmarks=num_landmarks,
        num_pinv_iters=num_pinv_iters,
        conv_kernel_size=0,
        segments=segments,
        landmarks=landmarks,
        inverse=inverse,
    )
    self_attention = query.shape[0] == key.shape[0]
    if mask is not None:
        key = jnp.where(mask[:, None], key, 0)
        if self_attention:
            query = jnp.where(mask[:, None], query, 0)
    if num_landmarks >= min(query.shape[0], key.shape[0]):
        matrix = softmax_matrix(query, key, mask)
        eye = jnp.eye(key.shape[0], dtype=matrix.dtype)
        return matrix, eye, eye

    counts = mask if segments == "valid" else None
    of_queries = counts if self_attention else None
    query_landmarks, _ = landmarks_by(
        landmarks, query, num_landmarks, of_queries, landmark_seed
    )
    key_landmarks, exists = landmarks_by(
        landmarks, key, num_landmarks, counts, landmark_seed
    )
    f = softmax_matrix(query, key_landmarks, exists)
    a = softmax_matrix(query_landmarks, key_landmarks)
    z = inverse_by(inverse, a, num_pinv_iters)
    b = softmax_matrix(query_landmarks, key, mask)
    if counts is not None:
        is_exact = counts.sum() <= num_landmarks
        own = (
            nth_valid(counts, num_landmarks)[:, None] == jnp.arange(key.shape[0])[None]
        )
        z = jnp.where(is_exact, jnp.eye(num_landmarks), z)
        b = jnp.where(is_exact, own & exists[:, None], b)
    return f, z, b


def nystrom_matrix(
    query: jax.Array, key: jax.Array, mask: jax.Array | None = None, **options: Any
) -> jax.Array:
    """F Z B [T, S], which stands for `softmax_matrix`; arguments of `nystrom_factors`.

    Its rows need not sum to 1, nor its entries be positive.
    """
    f, z, b = nystrom_factors(query, key, mask, **options)
    return jnp.linalg.multi_dot([f, z, b], precision="highest")
