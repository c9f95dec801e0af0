"""Which tokens make the landmarks of Nyström attention, in one head of one sequence.

Letters: T query length, S key length, H head dim, M landmarks.
"""

from collections.abc import Callable

import jax

from nystromformer.ops import zero_masked


def choose_landmarks(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    *,
    num_landmarks: int,
    landmark_padding: str,
    make_landmarks: Callable[..., tuple[jax.Array, jax.Array]],
    cross_attention: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Chooses the landmarks of queries and of keys.

    Args:
      query: [T, H].
      key: [S, H], zero where the mask is False.
      mask: [S] bool, True = attend; None = all. In self-attention it belongs to the
        queries as well.
      num_landmarks: M.
      landmark_padding: "mask": tokens that the mask excludes take no part; "count":
        they count as zeros.
      make_landmarks: a function as `nystromformer.nystrom.segment_means`.
      cross_attention: whether queries and keys are of different tokens, even if T = S.

    Returns:
      Q̃ [M, H] and K̃ [M, H] in at least float32, and which landmarks of keys exist,
      bool [M].
    """
    landmark_mask = mask if landmark_padding == "mask" else None
    key_landmarks, exists = make_landmarks(key, num_landmarks, landmark_mask)
    if query.shape[0] != key.shape[0] or cross_attention:
        # The mask says nothing about the queries.
        query_landmarks, _ = make_landmarks(query, num_landmarks, None)
        return query_landmarks, key_landmarks, exists

    if landmark_padding == "count":
        query = zero_masked(query, mask)
    query_landmarks, _ = make_landmarks(query, num_landmarks, landmark_mask)
    return query_landmarks, key_landmarks, exists
