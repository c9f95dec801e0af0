"""Reformer: each token attends to the tokens that fall into its hash bucket.

Kitaev et al., "Reformer: The Efficient Transformer", ICLR 2020. With one projection for
queries and keys and unit keys k_j = q_j / ‖q_j‖, token i attends to

    o_i = Σ_{j ∈ P_i} exp(q_i · k_j − z(P_i)) v_j,    P_i = ∪_r P_i^(r)          (3)

where P_i^(r) holds the tokens that round r hashes into the bucket of i. Tokens are
sorted by bucket (and by position within one) and cut into chunks; chunk c looks at the
chunks c − 1 and c, and chunk 0 at itself alone. A token attends to itself only when
there is nothing else. As in the authors' code q_i · k_j is not divided by √H.

Unlike in that code, a token does not see other buckets in its chunk, and sees a token
that several rounds find once (N_ij of the appendix): the rounds together are one
softmax. `lsh_scope="chunk"` does both as that code. The number of buckets follows the
number of valid tokens and padding sorts to the end, so adding padding changes nothing.
Each layer keeps the hashes that it has drawn, and that code draws them anew at every
forward pass; `redraw_hashes` does so in training.

Letters: L length, N heads, H head dim, R rounds of hashing, K axes for 2 K buckets,
C chunks.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from nystromformer.attention.base import (
    Attention,
    check_dropout_rng,
    make_random_key,
    read_random_key,
)
from nystromformer.attention.options import CommonArguments
from nystromformer.blocks import to_blocks
from nystromformer.precision import at_least_float32, einsum
from nystromformer.validation import check_choice, check_range

LSH_SCOPES = ("bucket", "chunk")
# A key with a smaller |k|² is not stretched to length 1.
_SMALLEST_SQUARE = 1e-12


def random_rotations(key: jax.Array, shape: tuple[int, int, int, int]) -> jax.Array:
    """Draws the axes that tokens are hashed by.

    Args:
      key: the key of the draw.
      shape: N, R, K, H.

    Returns:
      Normal numbers [N, R, K, H]. Axis k is the same for every K, and so every length.
    """
    num_heads, num_hashes, num_axes, head_dim = shape

    def draw_axis(k: jax.Array) -> jax.Array:
        axis_key = jax.random.fold_in(key, k)
        axis_shape = (num_heads, num_hashes, head_dim)
        return jax.random.normal(axis_key, axis_shape, jnp.float32)

    return jax.vmap(draw_axis, out_axes=2)(jnp.arange(num_axes))


def hash_buckets(
    x: jax.Array, mask: jax.Array, rotations: jax.Array, bucket_size: int
) -> jax.Array:
    """Hashes by angle: the nearest of the 2 K directions ±axis k, in each round.

    Near vectors tend to fall into one bucket: Andoni et al., "Practical and Optimal LSH
    for Angular Distance", NeurIPS 2015. It has no gradient.

    Args:
      x: [L, H].
      mask: [L] bool, True = a token.
      rotations: [R, K, H], K ≥ ⌈L / bucket_size⌉.
      bucket_size: n valid tokens use the first ⌈n / bucket_size⌉ axes, two buckets
        each; n ≤ bucket_size tokens are in one bucket.

    Returns:
      [R, L] int32: k for +axis k, K + k for −axis k, 2 K for padding.
    """
    num_axes = rotations.shape[1]
    num_valid = mask.sum()
    accumulation_dtype = at_least_float32(x.dtype)
    # A bucket must not depend on how a product is rounded.
    projections = jnp.einsum(
        "rkh,lh->rlk",
        rotations.astype(accumulation_dtype),
        lax.stop_gradient(x).astype(accumulation_dtype),
        precision="highest",
    )
    is_used = jnp.arange(num_axes) * bucket_size < num_valid  # [K]
    magnitudes = jnp.where(is_used[None, None], jnp.abs(projections), -1)
    axis = jnp.argmax(magnitudes, axis=-1)  # [R, L]
    projection = jnp.take_along_axis(projections, axis[:, :, None], axis=-1)[:, :, 0]

    bucket = jnp.where(projection < 0, num_axes + axis, axis)
    bucket = jnp.where(num_valid <= bucket_size, 0, bucket)
    return jnp.where(mask[None], bucket, 2 * num_axes).astype(jnp.int32)


def _find_seen_tokens(
    tokens: jax.Array,
    round_bucket: jax.Array,
    bucket: jax.Array,
    chunk: jax.Array,
    mask: jax.Array,
    lsh_scope: str,
    dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
    """The tokens that each chunk sees in one round, and the bias of their scores.

    Args:
      tokens: [C, size] int32, the tokens in the order of this round, chunk by chunk.
      round_bucket: [L] int32, the bucket of each token in this round.
      bucket: [R, L] int32, the bucket of each token in every round.
      chunk: [R, L] int32, the chunk of each token in every round.
      mask: [L] bool, True = a token.
      lsh_scope: one of LSH_SCOPES.
      dtype: the dtype of the bias.

    Returns:
      seen_tokens [C, 2 size] int32: the tokens of the previous chunk, then those of the
      chunk itself.
      bias [C, size, 2 size]: −log N_ij, where N_ij is the number of rounds in which i
      sees j (0 with lsh_scope="chunk"); the lowest finite number where i does not see
      j in this round; half of that for i itself, which then has a weight only if
      nothing else is seen.
    """
    num_chunks, size = tokens.shape
    lowest = jnp.finfo(dtype).min
    seen_tokens = jnp.concatenate([jnp.roll(tokens, 1, axis=0), tokens], axis=1)
    i = tokens[:, :, None]  # [C, size, 1]
    j = seen_tokens[:, None]  # [C, 1, 2 size]

    if lsh_scope == "chunk":
        is_seen = mask[j]
        bias = jnp.zeros((), dtype)
    else:
        is_seen = round_bucket[i] == round_bucket[j]
        # In a round i sees j if they share a bucket, and j is in the same chunk as i or
        # in the one before.
        is_same_bucket = bucket[:, i] == bucket[:, j]  # [R, C, size, 2 size]
        lag = chunk[:, i] - chunk[:, j]
        is_near = (lag >= 0) & (lag <= 1)
        num_rounds = (is_same_bucket & is_near).sum(0)  # N_ij
        bias = -jnp.log(jnp.maximum(num_rounds, 1).astype(dtype))

    # jnp.roll also put the last chunk in front of the first one, which does not see it.
    is_own_chunk = jnp.arange(2 * size)[None] >= size
    has_previous_chunk = jnp.arange(num_chunks)[:, None] > 0
    is_seen &= (is_own_chunk | has_previous_chunk)[:, None]

    bias = jnp.where(i == j, lowest / 2, bias)
    return seen_tokens, jnp.where(is_seen, bias, lowest)


def _attend_chunks(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array,
    precision: lax.PrecisionLike,
) -> tuple[jax.Array, jax.Array]:
    """Attends in every chunk: softmax(Q Kᵀ + bias) V.

    Args:
      query: [C, T, H].
      key: [C, S, H].
      value: [C, S, H].
      bias: [C, T, S], finite.
      precision: the precision of the products.

    Returns:
      [C, T, H] and z = log Σ exp(scores) [C, T], in at least float32.
    """
    scores = bias + einsum("cth,csh->cts", query, key, precision)
    largest = lax.stop_gradient(scores.max(-1, keepdims=True))
    weights = jnp.exp(scores - largest)  # [C, T, S]
    product = einsum("cts,csh->cth", weights.astype(value.dtype), value, precision)
    total = weights.sum(-1, keepdims=True)
    z = largest + jnp.log(total)
    return product / total, z[:, :, 0]


def _normalize_rows(key: jax.Array) -> jax.Array:
    """key [L, H] with rows of length 1."""
    accumulation_dtype = at_least_float32(key.dtype)
    square = jnp.square(key.astype(accumulation_dtype)).sum(-1, keepdims=True)
    inverse_norm = lax.rsqrt(jnp.maximum(square, _SMALLEST_SQUARE))
    return (key.astype(accumulation_dtype) * inverse_norm).astype(key.dtype)


class ReformerAttention(Attention):
    """LSH attention. Without parameters.

    Where keys differ from queries (in the paper they are equal), only keys are hashed:
    a token's query attends to the bucket of that token's key.
    """

    num_projections = 2
    self_attention_only = True
    size_option = "bucket_size"

    def __init__(
        self,
        *,
        num_hashes: int = 2,
        bucket_size: int = 64,
        lsh_scope: str = "bucket",
        redraw_hashes: bool = False,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention and draws the key of its hashes.

        Args:
          num_hashes: R ≥ 1, the rounds of hashing.
          bucket_size: the tokens in a chunk of the sorted sequence, which is two
            average buckets, so it is even. Up to this many valid tokens are one bucket.
          lsh_scope: "bucket": a token sees those of its bucket, each once. "chunk", as
            published: it sees all tokens of its chunk and the one before, as often as
            rounds find them.
          redraw_hashes: whether every forward pass in training draws new hashes from
            the call's dropout_rng, as published. Evaluation keeps the first ones, so
            that it gives the same result each time. Inside Flax's attention layers
            nothing is redrawn, as with Performer's `redraw_features`.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        check_range("num_hashes", num_hashes, 1)
        even_max_length = self.max_length + self.max_length % 2
        cause = f"max_length={self.max_length}"
        check_range("bucket_size", bucket_size, 2, even_max_length, cause)
        if bucket_size % 2:
            raise ValueError(
                "bucket_size must be even (a chunk is two average buckets), got "
                f"{bucket_size}"
            )
        check_choice("lsh_scope", lsh_scope, LSH_SCOPES)
        self.num_hashes = num_hashes
        self.bucket_size = bucket_size
        self.lsh_scope = lsh_scope
        self.redraw_hashes = redraw_hashes
        self.random_key = make_random_key(common["rngs"].params())

    @property
    def draws_in_training(self) -> bool:
        return self.redraw_hashes

    def for_training(self, dropout_rng: jax.Array | None) -> Attention:
        """This attention, or a copy of it with new hashes.

        Raises:
          ValueError: redraw_hashes without a dropout_rng.
        """
        if not self.redraw_hashes:
            return self
        key = check_dropout_rng("redraw_hashes=True", dropout_rng)
        attention = nnx.clone(self)
        attention.random_key = make_random_key(key)
        return attention

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        num_axes = -(-length // self.bucket_size)
        shape = (self.num_heads, self.num_hashes, num_axes, self.head_dim)
        return (random_rotations(read_random_key(self.random_key), shape),)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        rotations: jax.Array,
    ) -> jax.Array:
        length = query.shape[0]
        if mask is None:
            mask = jnp.ones(length, bool)
        query = self._fill_last_chunk(query)
        key = self._fill_last_chunk(key)
        value = self._fill_last_chunk(value)
        mask = self._fill_last_chunk(mask)
        unit_key = _normalize_rows(key)

        bucket = hash_buckets(key, mask, rotations, self.bucket_size)  # [R, L]
        order = jnp.argsort(bucket, axis=1)  # the tokens by rank; the sort is stable
        rank = jnp.argsort(order, axis=1)  # s_i, the ranks by token
        chunk = rank // self.bucket_size

        def attend_one_round(
            tokens: jax.Array, round_bucket: jax.Array
        ) -> tuple[jax.Array, jax.Array]:
            seen_tokens, bias = _find_seen_tokens(
                tokens=tokens,
                round_bucket=round_bucket,
                bucket=bucket,
                chunk=chunk,
                mask=mask,
                lsh_scope=self.lsh_scope,
                dtype=at_least_float32(query.dtype),
            )
            return _attend_chunks(
                query=query[tokens],
                key=unit_key[seen_tokens],
                value=value[seen_tokens],
                bias=bias,
                precision=precision,
            )

        tokens = order.reshape(len(order), -1, self.bucket_size)  # [R, C, size]
        attended, z = jax.vmap(attend_one_round)(tokens, bucket)

        # Both are in the order of the ranks, and go back into that of the tokens.
        z = jnp.take_along_axis(z.reshape(rank.shape), rank, axis=1)  # [R, L]
        attended = attended.reshape(*rank.shape, -1)
        attended = jnp.take_along_axis(attended, rank[:, :, None], axis=1)  # [R, L, H]
        round_weights = jax.nn.softmax(z, axis=0)
        return (round_weights[:, :, None] * attended).sum(0)[:length]

    def _fill_last_chunk(self, x: jax.Array) -> jax.Array:
        """x [L, ...] with zeros (False) behind, so that chunks divide its length."""
        return to_blocks(x, self.bucket_size).reshape(-1, *x.shape[1:])
