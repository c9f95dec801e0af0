"""Reformer: each token attends to the tokens that fall into its hash bucket.

Kitaev et al., "Reformer: The Efficient Transformer", ICLR 2020. With one projection for
queries and keys and unit keys k_j = q_j / ‖q_j‖, token i attends to

    o_i = Σ_{j ∈ P_i} exp(q_i · k_j − z(P_i)) v_j,    P_i = ∪_r P_i^(r)          (3)

where P_i^(r) holds the tokens that round r hashes into the bucket of i. Tokens are
sorted by bucket (and by position within one) and cut into chunks; chunk c looks at the
chunks c − 1 and c. A token attends to itself only when there is nothing else. As in the
authors' code q_i · k_j is not divided by √H.

Unlike in that code, a token does not see other buckets in its chunk, and sees a token
that several rounds find once (N_ij of the appendix); `lsh_scope="chunk"` does both
as that code. The number of buckets follows the number of valid tokens and padding sorts
to the end, so adding padding changes nothing.

Letters: L length, N heads, H head dim, R rounds of hashing, 2 K buckets, C chunks.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.attention.base import Attention
from nystromformer.blocks import to_blocks
from nystromformer.ops import at_least_float32, einsum
from nystromformer.validation import check_choice, check_range

LSH_SCOPES = ("bucket", "chunk")
_SMALLEST_SQUARE = 1e-12  # |k|² below which a key is not stretched to length 1


def random_rotations(seed: int, shape: tuple[int, int, int, int]) -> jax.Array:
    """Normal [N, R, K, H]; axis k is the same for every K, hence for every length."""
    *outer, num_axes, head_dim = shape
    # Named, so that a change of jax's default generator changes no model.
    key = jax.random.key(seed, impl="threefry2x32")

    def axis(k: jax.Array) -> jax.Array:
        drawn_by, sizes = jax.random.fold_in(key, k), (*outer, head_dim)
        return jax.random.normal(drawn_by, sizes, jnp.float32)

    return jax.vmap(axis, out_axes=2)(jnp.arange(num_axes))


def hash_buckets(
    x: jax.Array, mask: jax.Array, rotations: jax.Array, bucket_size: int
) -> jax.Array:
    """Angular hashing: argmax [x R; −x R], without a gradient.

    Args:
      x, mask: [L, H]; [L] bool, True = a token.
      rotations: [R, K, H], K ≥ ⌈L / bucket_size⌉.
      bucket_size: n valid tokens use the first ⌈n / bucket_size⌉ axes, two buckets
        each; n ≤ bucket_size tokens are in one bucket.

    Returns:
      [R, L] int32: k for +axis k, K + k for −axis k, 2 K for padding.
    """
    num_axes, num_valid = rotations.shape[1], mask.sum()
    wide = at_least_float32(x.dtype)
    x, rotations = lax.stop_gradient(x).astype(wide), rotations.astype(wide)
    # Highest precision: a bucket must not depend on how a product is rounded.
    rotated = jnp.einsum("rkh,lh->rlk", rotations, x, precision="highest")
    used = (jnp.arange(num_axes) * bucket_size < num_valid)[None, None]
    axis = jnp.argmax(jnp.where(used, jnp.abs(rotated), -1), axis=-1)  # [R, L]
    along = jnp.take_along_axis(rotated, axis[:, :, None], axis=-1)[:, :, 0]
    bucket = jnp.where(along < 0, num_axes + axis, axis)
    bucket = jnp.where(num_valid <= bucket_size, 0, bucket)
    return jnp.where(mask[None], bucket, 2 * num_axes).astype(jnp.int32)


def _seen_tokens(tokens, bucket, chunk, mask, lsh_scope, dtype):
    """The tokens [C, 2 size] that each chunk sees in one round, and their scores' bias.

    From tokens [C, size] in the order of this round, the bucket [1 + R, L] of each
    token in this and in every round, and its chunk [R, L]. The bias [C, size, 2 size]
    is −log N_ij ("chunk": 0), the lowest number outside P_i^(r), half of it for itself.
    """
    num_chunks, size = tokens.shape
    lowest = jnp.finfo(dtype).min
    seen = jnp.concatenate([jnp.roll(tokens, 1, axis=0), tokens], axis=1)
    if lsh_scope == "chunk":
        is_seen, bias = mask[seen][:, None], jnp.zeros((), dtype)
    else:
        same = bucket[:, tokens][..., None] == bucket[:, seen][:, :, None]
        lag = chunk[:, tokens][..., None] - chunk[:, seen][:, :, None]
        found = (same[1:] & (lag >= 0) & (lag <= 1)).sum(0)  # N_ij
        is_seen, bias = same[0], -jnp.log(jnp.maximum(found, 1).astype(dtype))
    # Rolling wrapped the last chunk around to the first.
    own = jnp.arange(2 * size)[None] >= size
    before = (jnp.arange(num_chunks) > 0)[:, None] | own
    bias = jnp.where(tokens[:, :, None] == seen[:, None], lowest / 2, bias)
    return seen, jnp.where(is_seen & before[:, None], bias, lowest)


def _attend_chunks(query, key, value, bias, precision):
    """softmax(Q Kᵀ + bias) V in every chunk, and z = log Σ exp(scores).

    query [C, T, H], key and value [C, S, H], finite bias [C, T, S] -> [C, T, H] and
    [C, T] in at least float32.
    """
    scores = bias + einsum("cth,csh->cts", query, key, precision)
    largest = lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - largest)  # [C, T, S]
    product = einsum("cts,csh->cth", weights.astype(value.dtype), value, precision)
    total = weights.sum(-1, keepdims=True)
    return product / total, (largest + jnp.log(total))[:, :, 0]


class ReformerAttention(Attention):
    """LSH attention. Without parameters.

    Where keys differ from queries (in the paper they are equal), only keys are hashed:
    a token's query attends to the bucket of that token's key.
    """

    num_hashes: int = 2  # rounds of hashing, R ≥ 1
    # Tokens in a chunk of the sorted sequence, which is two average buckets. Up to so
    # many valid tokens are one bucket.
    bucket_size: int = 64
    seed: int = 0  # of the rotations, drawn for each head and round
    # "bucket": its tokens, each once; or, as published, "chunk": all tokens of a chunk
    # and the one before, as often as rounds find them.
    lsh_scope: str = "bucket"

    num_projections = 2
    self_attention_only = True
    size_option = "bucket_size"

    def __init__(self, **options: Any):
        super().__init__(**options)
        size, most = self.bucket_size, self.max_length + self.max_length % 2
        check_range("num_hashes", self.num_hashes, 1)
        check_range("bucket_size", size, 2, most)
        if size % 2:
            why = "a chunk is two average buckets"
            raise ValueError(f"bucket_size must be even ({why}), got {size}")
        check_choice("lsh_scope", self.lsh_scope, LSH_SCOPES)

    def per_head(self, length):
        num_axes = -(-length // self.bucket_size)
        shape = self.num_heads, self.num_hashes, num_axes, self.head_dim
        return (random_rotations(self.seed, shape),)

    def attend(self, query, key, value, mask, precision, rotations):
        mask = jnp.ones(len(key), bool) if mask is None else mask
        length = query.shape[0]
        wide = at_least_float32(query.dtype)
        query, key, value, mask = (
            to_blocks(x, self.bucket_size).reshape(-1, *x.shape[1:])
            for x in (query, key, value, mask)
        )
        square = jnp.square(key.astype(wide)).sum(-1, keepdims=True)
        inverse_norm = lax.rsqrt(jnp.maximum(square, _SMALLEST_SQUARE))
        unit_key = (key.astype(wide) * inverse_norm).astype(key.dtype)

        bucket = hash_buckets(key, mask, rotations, self.bucket_size)  # [R, L]
        order = jnp.argsort(bucket, axis=1)  # tokens by rank; stable
        rank = jnp.argsort(order, axis=1)  # s_i, ranks by token
        chunk = rank // self.bucket_size

        def one_round(tokens: jax.Array, here: jax.Array) -> tuple[jax.Array, ...]:
            buckets = jnp.concatenate([here[None], bucket])
            given = tokens, buckets, chunk, mask, self.lsh_scope, wide
            seen, bias = _seen_tokens(*given)
            keys, values = unit_key[seen], value[seen]
            return _attend_chunks(query[tokens], keys, values, bias, precision)

        in_chunks = order.reshape(len(order), -1, self.bucket_size)  # [R, C, size]
        attended, z = jax.vmap(one_round)(in_chunks, bucket)
        z = jnp.take_along_axis(z.reshape(rank.shape), rank, axis=1)  # [R, L]
        attended = attended.reshape(*rank.shape, -1)
        attended = jnp.take_along_axis(attended, rank[:, :, None], axis=1)  # [R, L, H]
        return (jax.nn.softmax(z, axis=0)[:, :, None] * attended).sum(0)[:length]
