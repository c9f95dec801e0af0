"""The [T, S] matrices behind softmax and Nyström attention, for those who want to look.

For analysis only: what training computes never forms them. Attention is linear in V, so
its matrix is what it makes of V = I.

Letters: T query length, S key length, H head dim, M landmarks.
"""

from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.nystrom import attend, check_options, landmarks_by, nystrom
from nystromformer.precision import at_least_float32


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
    everything = jnp.eye(key.shape[0], dtype=wide)
    return attend(query.astype(wide), scaled, everything, mask, precision="highest")


def nystrom_matrix(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    **options: Any,
) -> jax.Array:
    """softmax(Q K̃ᵀ) Z softmax(Q̃ Kᵀ), which stands for `softmax_matrix`.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = attend; None = all.
      num_landmarks, **options: as for `nystrom`.

    Returns:
      [T, S] in at least float32. Rows need not sum to 1, nor entries be positive;
      columns of excluded keys are 0.

    Raises:
      ValueError: for options that make no sense.
    """
    _check(num_landmarks=num_landmarks, **options)
    wide = at_least_float32(key.dtype)
    return nystrom(
        query.astype(wide),
        key.astype(wide),
        jnp.eye(key.shape[0], dtype=wide),
        mask,
        num_landmarks=num_landmarks,
        precision="highest",
        **options,
    )


def nystrom_factors(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """F = softmax(Q K̃ᵀ), A = softmax(Q̃ K̃ᵀ), B = softmax(Q̃ Kᵀ) of self-attention.

    `nystrom_matrix` is F Z B, with Z ≈ A⁺ as `inverse_by` has it.

    Args:
      query: [S, H].
      key: [S, H].
      mask: [S] bool, True = counts; None = all.
      num_landmarks, landmarks, landmark_seed: as for `nystrom`.

    Returns:
      F [S, M], A [M, M] and B [M, S] in at least float32. Where no more tokens than M
      count, attention is exact, and these are no part of it.

    Raises:
      ValueError: for options that make no sense.
    """
    _check(num_landmarks=num_landmarks, landmarks=landmarks)
    if mask is not None:
        query, key = (jnp.where(mask[:, None], x, 0) for x in (query, key))
    of_queries, of_keys = (
        landmarks_by(landmarks, x, num_landmarks, mask, landmark_seed)[0]
        for x in (query, key)
    )
    return (
        softmax_matrix(query, of_keys),
        softmax_matrix(of_queries, of_keys),
        softmax_matrix(of_queries, key, mask),
    )


def _check(**options: Any) -> None:
    options.pop("landmark_seed", None)
    check_options(
        **{"num_pinv_iters": 6, "segments": "valid", "conv_kernel_size": 0, **options}
    )
