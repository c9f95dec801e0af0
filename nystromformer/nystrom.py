"""Nyström attention: the paper, on one head of one sequence.

Xiong et al., "Nyströmformer: A Nyström-Based Algorithm for Approximating
Self-Attention", AAAI 2021. With s = 1/√H, landmarks Q̃, K̃ [M, H] (the means of M
segments of the queries and of the keys) and A = softmax(s Q̃ K̃ᵀ),

    softmax(s Q Kᵀ) V  ≈  softmax(s Q K̃ᵀ) · [ A⁺ · ( softmax(s Q̃ Kᵀ) V ) ]      (13)

Read from the right it is two ordinary attentions around an M × M matrix,
attend(Q, K̃, Z · attend(Q̃, K, V)) with Z ≈ A⁺: nothing larger than T × M exists.

Letters: T query length, S key length, L either of them, H head dim, E value dim,
M landmarks, n valid tokens.

Where this differs from the published code, on purpose:

* Segments divide the *valid* tokens. Padding therefore changes nothing, every length
  works with every M, and M ≥ the number of valid tokens is exact attention. Without
  padding and with M dividing the length it is the paper, equation by equation;
  `landmark_padding="count"` keeps the published behaviour for comparison.
* Z₀ is scaled by the norms of its own matrix, not by the largest of the batch, so an
  example does not depend on its neighbours.
* A, Z and the softmax statistics are at least float32, without loss of digits
  in their products, whatever the dtype outside.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.dot_product import attend
from nystromformer.masks import first_valid_positions, ranks, zero_masked
from nystromformer.pinv import iterative_pinv
from nystromformer.precision import at_least_float32
from nystromformer.rows import sum_rows

Precision = lax.PrecisionLike
LANDMARK_PADDINGS = ("mask", "count")


def segment_ids(mask: jax.Array, num_landmarks: int) -> jax.Array:
    """The segment of each token: ⌊r · min(M, n) / n⌋ for rank r among the n valid.

    Args:
      mask: [S] bool, True = valid.
      num_landmarks: M.

    Returns:
      int32 [S], M for tokens that are not valid.

    Raises:
      ValueError: if S · M is too large for int32.
    """
    length = mask.shape[0]
    if (length - 1) * min(num_landmarks, length) >= 2**31:
        raise ValueError(
            f"{num_landmarks} landmarks of {length} tokens are too many for 32 bits: "
            f"take at most {2**31 // length}"
        )
    rank = ranks(mask) - 1
    num_valid = jnp.maximum(rank[-1] + 1, 1)
    num_segments = jnp.minimum(num_landmarks, num_valid)
    return jnp.where(mask, rank * num_segments // num_valid, num_landmarks)


def segment_means(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Landmarks: the means of M contiguous segments of the valid tokens.

    The sizes of two segments differ by at most one token. With n ≤ M valid tokens each
    token is a segment of its own.

    Args:
      x: [S, H].
      num_landmarks: M ≥ 1.
      mask: [S] bool, True = valid; None = all. What it excludes must be finite.

    Returns:
      landmarks [M, H] in at least float32, zero where the segment has no tokens, and
      exists [M] bool, False for these.
    """
    length, head_dim = x.shape
    accumulation_dtype = at_least_float32(x.dtype)
    if mask is None and length % num_landmarks == 0:
        segments = x.reshape(num_landmarks, length // num_landmarks, head_dim)
        return segments.mean(1, dtype=accumulation_dtype), jnp.ones(num_landmarks, bool)

    if mask is None:
        mask = jnp.ones(length, bool)
    ids = segment_ids(mask, num_landmarks)
    # Tokens that are not valid make a last segment, which is dropped.
    sizes = jax.ops.segment_sum(mask.astype(jnp.int32), ids, num_landmarks + 1)[:-1]
    sums = sum_rows(x, ids, num_landmarks)
    divisors = jnp.maximum(sizes, 1).astype(accumulation_dtype)
    return sums / divisors[:, None], sizes > 0


def nystrom(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    query_mask: jax.Array | None = None,
    is_self_attention: bool = False,
    num_landmarks: int,
    num_pinv_iters: int = 6,
    landmark_padding: str = "mask",
    make_landmarks: Callable[..., tuple[jax.Array, jax.Array]] = segment_means,
    invert: Callable[[jax.Array, int], jax.Array] = iterative_pinv,
    precision: Precision = None,
    attend_head: Callable[..., jax.Array] = attend,
) -> jax.Array:
    """Nyström attention of one head of one sequence, eq. (13).

    Args:
      query: [T, H].
      key: [S, H].
      value: [S, E].
      mask: [S] bool, True = attend; None = all. Keys and values that it excludes must
        be zero.
      query_mask: [T] bool, True = the query counts in Q̃; None = all. The others must
        be finite.
      is_self_attention: whether queries and keys are the same tokens, so that
        `query_mask` says the same as `mask`.
      num_landmarks: M ≥ 1. Attention is exact if M ≥ T or M ≥ S, and with
        landmark_padding="mask" also if M ≥ the number n of valid keys, or M ≥ the
        number of queries that count, for these.
      num_pinv_iters: the number of iterations of `invert`.
      landmark_padding: "mask", or "count" for the published treatment of padding:
        segments of the padded length, in which excluded tokens count as zeros.
      make_landmarks: a function as `segment_means`, the paper's choice;
        `nystromformer.landmarks` has others. With n ≤ M its landmarks must be the
        valid tokens in their order.
      invert: a function as `iterative_pinv`, the paper's choice; `nystromformer.pinv`
        has others.
      precision: the precision of the products with T or S rows.
      attend_head: a function as `dot_product.attend`, for the two attentions.

    Returns:
      [T, E] in at least float32.
    """
    scale = query.shape[-1] ** -0.5
    if num_landmarks >= min(query.shape[0], key.shape[0]):
        return attend_head(query, key, value, mask, scale=scale, precision=precision)

    query_landmarks, key_landmarks, query_exists, key_exists = choose_landmarks(
        query,
        key,
        mask,
        query_mask,
        num_landmarks=num_landmarks,
        landmark_padding=landmark_padding,
        make_landmarks=make_landmarks,
    )
    scaled_query_landmarks = query_landmarks * scale
    scaled_key_landmarks = key_landmarks * scale

    # With n ≤ M valid tokens each of them is a landmark, and attention is exact: see
    # "Few tokens" below.
    few_keys, few_queries = find_few_tokens(
        mask,
        query_mask,
        is_self_attention=is_self_attention,
        num_landmarks=num_landmarks,
        landmark_padding=landmark_padding,
    )

    # Z ≈ A⁺, [M, M].
    scores = jnp.matmul(scaled_query_landmarks, key_landmarks.T, precision="highest")
    matrix = softmax_of_existing(scores, query_exists, key_exists)
    # Without valid tokens A is zero, and the gradient of the iterations would be NaN.
    matrix = identity_if_few(matrix, few_keys, few_queries)
    z = invert(matrix, num_pinv_iters)

    # Z · softmax(Q̃ Kᵀ) V, [M, E].
    context = attend_head(
        scaled_query_landmarks.astype(query.dtype),
        key,
        value,
        mask,
        precision=precision,
    )
    landmark_values = jnp.matmul(z, context, precision="highest")
    landmark_values = _own_values_if_few(landmark_values, value, few_keys)

    # K̃ and the values of the landmarks are rounded to the dtype of the inputs. What the
    # values have in common is not: the weights of a query sum to 1, so that it can be
    # added at the end. Rounded with the rest, it would drown the gradients of Q and K̃,
    # which depend on the differences between values.
    common_value = landmark_values.mean(0, keepdims=True)  # [1, E]
    out = common_value + attend_head(
        query,
        scaled_key_landmarks.astype(key.dtype),
        (landmark_values - common_value).astype(value.dtype),
        key_exists,
        precision=precision,
    )
    return _own_rows_if_few(out, context, few_queries)


def choose_landmarks(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    query_mask: jax.Array | None,
    *,
    num_landmarks: int,
    landmark_padding: str,
    make_landmarks: Callable[..., tuple[jax.Array, jax.Array]],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Chooses the landmarks of queries and of keys; the arguments are `nystrom`'s.

    Returns:
      Q̃ [M, H] and K̃ [M, H] in at least float32, and which landmarks of queries and
      which of keys exist, bool [M] each.
    """
    if landmark_padding == "count":
        # Tokens that are left out count as zeros, as keys are there already.
        query = zero_masked(query, query_mask)
        mask = None
        query_mask = None
    query_landmarks, query_exists = make_landmarks(query, num_landmarks, query_mask)
    key_landmarks, key_exists = make_landmarks(key, num_landmarks, mask)
    return query_landmarks, key_landmarks, query_exists, key_exists


def softmax_of_existing(
    scores: jax.Array, query_exists: jax.Array, key_exists: jax.Array
) -> jax.Array:
    """A = softmax(scores) [M, M], in which landmarks that do not exist have no part.

    Their rows and columns are zero, and so are those of A⁺ and of its iterations.
    """
    lowest = jnp.finfo(scores.dtype).min
    matrix = jax.nn.softmax(jnp.where(key_exists[None], scores, lowest))
    return jnp.where(query_exists[:, None], matrix, 0)


# Few tokens. With n ≤ M valid tokens landmark i is the i-th of them, and attention is
# exact without an inverse (Z = I):
#
#     few keys       K̃ has all keys. Each landmark takes the value of its key, so that
#                    the attention of Q to K̃ is exact.
#     few queries    Q̃ has all queries. Each query takes its landmark's row of
#                    attend(Q̃, K, V), which is exact.
#
# The number n is known only when the program runs. So eq. (13) is computed in any case,
# and the functions below replace its numbers where one of these cases holds.


class FewTokens(NamedTuple):
    """The case of n ≤ M valid tokens, in which landmark i is the i-th of them."""

    mask: jax.Array  # [L] bool, True = valid
    num_landmarks: int  # M

    def holds(self) -> jax.Array:
        """Whether n ≤ M, a bool."""
        return self.mask.sum() <= self.num_landmarks

    def tokens_of_landmarks(self) -> jax.Array:
        """The position of the token that each landmark is, int32 [M]."""
        return first_valid_positions(self.mask, self.num_landmarks)

    def landmarks_of_tokens(self) -> jax.Array:
        """The number of the landmark that each valid token is, int32 [L].

        Those of other tokens, from −1 on, have no meaning.
        """
        return ranks(self.mask) - 1


def find_few_tokens(
    mask: jax.Array | None,
    query_mask: jax.Array | None,
    *,
    is_self_attention: bool,
    num_landmarks: int,
    landmark_padding: str,
) -> tuple[FewTokens | None, FewTokens | None]:
    """The cases of few keys and of few queries; the arguments are `nystrom`'s.

    Returns:
      Each as `FewTokens`, or None if it makes nothing exact.
    """
    if landmark_padding == "count":
        return None, None
    few_keys = None if mask is None else FewTokens(mask, num_landmarks)
    # In self-attention the queries are few where the keys are.
    if query_mask is None or is_self_attention:
        return few_keys, None
    return few_keys, FewTokens(query_mask, num_landmarks)


def identity_if_few(matrix: jax.Array, *cases: FewTokens | None) -> jax.Array:
    """A matrix [M, M], A or its inverse; the identity where one of the cases holds.

    Attention is then exact without an inverse.
    """
    eye = jnp.eye(len(matrix), dtype=matrix.dtype)
    for few_tokens in cases:
        if few_tokens is not None:
            matrix = jnp.where(few_tokens.holds(), eye, matrix)
    return matrix


def _own_values_if_few(
    landmark_values: jax.Array, value: jax.Array, few_keys: FewTokens | None
) -> jax.Array:
    """The values of the landmarks [M, E]; where each is a key, that key's own value."""
    if few_keys is None:
        return landmark_values
    own_values = value[few_keys.tokens_of_landmarks()].astype(landmark_values.dtype)
    return jnp.where(few_keys.holds(), own_values, landmark_values)


def _own_rows_if_few(
    out: jax.Array, context: jax.Array, few_queries: FewTokens | None
) -> jax.Array:
    """`out` [T, E]; where each landmark is a query, that query's row of `context`.

    The row of softmax(Q̃ Kᵀ) V is exact attention then.
    """
    if few_queries is None:
        return out
    landmarks = jnp.clip(few_queries.landmarks_of_tokens(), 0, len(context) - 1)
    own_rows = context[landmarks].astype(out.dtype)  # [T, E]
    is_exact = few_queries.mask & few_queries.holds()
    return jnp.where(is_exact[:, None], own_rows, out)
