"""Nyström attention: the paper, on one head of one sequence.

Xiong et al., "Nyströmformer: A Nyström-Based Algorithm for Approximating
Self-Attention", AAAI 2021. With s = 1/√H, landmarks Q̃, K̃ [M, H] (the means of M
segments of the queries and of the keys) and A = softmax(s Q̃ K̃ᵀ),

    softmax(s Q Kᵀ) V  ≈  softmax(s Q K̃ᵀ) · [ A⁺ · ( softmax(s Q̃ Kᵀ) V ) ]      (13)

Read from the right it is two ordinary attentions around an M × M matrix,
attend(Q, K̃, Z · attend(Q̃, K, V)) with Z ≈ A⁺: nothing larger than T × M exists.

Letters: T query length, S key length, H head dim, M landmarks.

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

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.blocks import nth_valid, ranks
from nystromformer.dot_product import attend
from nystromformer.ops import at_least_float32, einsum, tensor_cores, zeroed

Precision = lax.PrecisionLike
LANDMARK_PADDINGS = ("mask", "count")


def segment_ids(mask: jax.Array, num_landmarks: int) -> jax.Array:
    """The segment of each token: ⌊r · min(M, n) / n⌋ for rank r among the n valid.

    mask [S] bool, True = valid -> [S] int32, M for the others. ValueError where S · M
    is too large for int32.
    """
    length = mask.shape[0]
    if (length - 1) * min(num_landmarks, length) >= 2**31:
        raise ValueError(
            f"{num_landmarks} landmarks of {length} tokens are too many for 32 bits: "
            f"take at most {2**31 // length}"
        )
    rank = ranks(mask) - 1
    num_valid = jnp.maximum(rank[-1] + 1, 1)
    ids = rank * jnp.minimum(num_landmarks, num_valid) // num_valid
    return jnp.where(mask, ids, num_landmarks)


def segment_means(
    x: jax.Array, num_landmarks: int, mask: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """Landmarks: the means of M contiguous segments of the valid tokens.

    Segments differ by at most one token; with n ≤ M every token is one of its own.

    Args:
      x: [S, H].
      num_landmarks: M ≥ 1.
      mask: [S] bool, True = valid; None = all. What it excludes must be finite.

    Returns:
      landmarks [M, H] in at least float32, zero where the segment has no tokens, and
      exists [M] bool, which of them have any.
    """
    length, wide = len(x), at_least_float32(x.dtype)
    if mask is None and length % num_landmarks == 0:
        segments = x.reshape(num_landmarks, length // num_landmarks, x.shape[1])
        return segments.mean(1, dtype=wide), jnp.ones(num_landmarks, bool)
    if mask is None:
        mask = jnp.ones(length, bool)
    ids = segment_ids(mask, num_landmarks)
    counts = jax.ops.segment_sum(mask.astype(jnp.int32), ids, num_landmarks + 1)[:-1]

    def scattered(x: jax.Array, ids: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x.astype(wide), ids, num_landmarks + 1)[:-1]

    def product(x: jax.Array, ids: jax.Array, precision: Precision) -> jax.Array:
        member = ids[None, :] == jnp.arange(num_landmarks)[:, None]  # [M, S]
        return einsum("ms,sh->mh", member.astype(x.dtype), x, precision)

    # A fifth of the product's time on a CPU; accelerators scatter slowly.
    sums = lax.platform_dependent(
        *(x, ids),
        cpu=scattered,
        cuda=functools.partial(product, precision=tensor_cores(x.dtype)),
        default=functools.partial(product, precision="highest"),
    )
    sizes = jnp.maximum(counts, 1).astype(wide)
    return sums / sizes[:, None], counts > 0


def iterative_pinv(
    matrix: jax.Array, num_iters: int = 6, scale_over: Sequence[str] = ()
) -> jax.Array:
    """A⁺ by the third-order iteration of Razavi et al. (2014), eq. (14) of the paper.

        Z₀ = Aᵀ / (‖A‖₁ ‖A‖∞),
        Zⱼ₊₁ = ¼ Zⱼ (13 I − A Zⱼ (15 I − A Zⱼ (7 I − A Zⱼ)))

    Six iterations are far from converged on softmax matrices and so a *regularised*
    inverse; that is the method as published, and its gradient goes through them.

    Args:
      matrix: A [..., M, M]; each is scaled by its own norms, the largest column sum
        and the largest row sum of absolute values.
      num_iters: in float32 more than some 20 can diverge on a matrix of low rank, as
        of equal tokens: rounding in its null space grows with each.
      scale_over: names of vmapped axes along which the largest norms scale all, as in
        the published code: over the batch and its heads.

    Returns:
      Z [..., M, M] in at least float32.
    """
    a = matrix.astype(at_least_float32(matrix.dtype))
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    norm_1 = jnp.abs(a).sum(-2).max(-1)
    norm_inf = jnp.abs(a).sum(-1).max(-1)
    for axis in scale_over:
        norm_1, norm_inf = (lax.all_gather(x, axis).max(0) for x in (norm_1, norm_inf))

    def iterate(a: jax.Array, z: jax.Array, precision: Any, unroll: bool) -> jax.Array:
        matmul = functools.partial(jnp.matmul, precision=precision)

        def step(z: jax.Array, _: None) -> tuple[jax.Array, None]:
            az = matmul(a, z)
            inner = 15 * eye - matmul(az, 7 * eye - az)
            return 0.25 * matmul(z, 13 * eye - matmul(az, inner)), None

        return lax.scan(step, z, length=num_iters, unroll=unroll)[0]

    # A TPU's compiler takes twice as long without the loop; a GPU copies more with it.
    return lax.platform_dependent(
        *(a, a.mT / (norm_1 * norm_inf)[..., None, None]),
        cpu=functools.partial(iterate, precision="highest", unroll=True),
        cuda=functools.partial(iterate, precision=tensor_cores(a.dtype), unroll=True),
        default=functools.partial(iterate, precision="highest", unroll=False),
    )


def nystrom(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int,
    num_pinv_iters: int = 6,
    landmark_padding: str = "mask",
    landmarks: Callable[..., tuple[jax.Array, jax.Array]] = segment_means,
    pinv: Callable[[jax.Array, int], jax.Array] = iterative_pinv,
    precision: Precision = None,
    cross_attention: bool = False,
) -> jax.Array:
    """Nyström attention of one head of one sequence, eq. (13).

    Args:
      query, key, value: [T, H], [S, H], [S, H].
      mask: [S] bool, True = attend; None = all. Keys and values that it excludes must
        be zero. With T = S, unless in cross attention, it also says which queries make
        Q̃; the others must be finite.
      num_landmarks: M ≥ 1; M ≥ T or M ≥ the number n of valid keys is exact attention.
      landmark_padding: "mask", or "count" for the published treatment of padding:
        segments of the padded length, in which excluded tokens count as zeros.
      landmarks, pinv: as `segment_means` and `iterative_pinv`, the paper's choices;
        `nystromformer.landmarks` has others.
      precision: of the products with T or S rows.
      cross_attention: queries are of other tokens than keys, also with T = S.

    Returns:
      [T, H] in at least float32.
    """
    scale = query.shape[-1] ** -0.5
    if num_landmarks >= min(query.shape[0], key.shape[0]):
        return attend(query, key, value, mask, scale=scale, precision=precision)

    is_self_attention = query.shape[0] == key.shape[0] and not cross_attention
    valid = mask if landmark_padding == "mask" else None  # what makes landmarks
    of_queries = valid if is_self_attention else None
    counts_padding = is_self_attention and landmark_padding == "count"
    counted = zeroed(query, mask) if counts_padding else query
    query_landmarks, _ = landmarks(counted, num_landmarks, of_queries)
    key_landmarks, exists = landmarks(key, num_landmarks, valid)
    query_landmarks, key_scaled = query_landmarks * scale, key_landmarks * scale

    scores = jnp.matmul(query_landmarks, key_landmarks.T, precision="highest")
    z = pinv(jax.nn.softmax(scores), num_pinv_iters)  # [M, M]
    query_landmarks = query_landmarks.astype(query.dtype)
    context = attend(query_landmarks, key, value, mask, precision=precision)
    middle = jnp.matmul(z, context, precision="highest")  # [M, H]
    if valid is not None:
        # With n ≤ M every landmark is a token, and its own value in the middle is
        # exact. Only then do landmarks lack tokens: nothing above needs to mask them.
        own = value[nth_valid(valid, num_landmarks)].astype(middle.dtype)
        middle = jnp.where(valid.sum() <= num_landmarks, own, middle)
    # Rounded too where the inputs are: their own rounding costs more.
    key_scaled, middle = key_scaled.astype(key.dtype), middle.astype(value.dtype)
    return attend(query, key_scaled, middle, exists, precision=precision)
