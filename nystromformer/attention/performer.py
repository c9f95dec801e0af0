"""Performer: an unbiased estimate of softmax attention by random features (FAVOR+).

Choromanski et al., "Rethinking Attention with Performers", ICLR 2021. For w ~ N(0, I)

    exp(q·k) = E[exp(w·q − |q|²/2) · exp(w·k − |k|²/2)]                     (Lemma 1)

R such features of each query and key, with linear attention between them, estimate
softmax attention; rows w that are orthogonal in blocks of H estimate it better.

Letters: L length, T query length, S key length, H head dim, R features.
"""

from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from nystromformer.attention.base import Attention, check_dropout_rng
from nystromformer.attention.linear import kernel_attend
from nystromformer.attention.options import CommonArguments
from nystromformer.precision import einsum
from nystromformer.validation import check_choice, check_range

PUBLISHED_EPSILON = 1e-4
# x [L, H] -> W x / H^(1/4), [L, R].
Project = Callable[[jax.Array], jax.Array]


class RandomProjection(nnx.Variable):
    """A random array: in every checkpoint, without a gradient."""


def orthogonalize_rows(matrix: jax.Array) -> jax.Array:
    """Makes rows orthonormal by Gram-Schmidt.

    A Gaussian matrix becomes a uniformly distributed orthogonal one. It uses products
    alone: LAPACK's QR inside a compiled program may wait for the threads that run the
    program.

    Args:
      matrix: [H, H].

    Returns:
      [H, H].
    """
    size = matrix.shape[0]

    def make_orthogonal(i: jax.Array, rows: jax.Array) -> jax.Array:
        """The rows with row i orthogonal to those in front of it, and of length 1."""
        is_previous = jnp.arange(size)[:, None] < i
        previous_rows = jnp.where(is_previous, rows, 0)
        row = rows[i]
        for _ in range(2):  # the second time removes the rounding of the first
            components = previous_rows @ row
            row -= components @ previous_rows
        return rows.at[i].set(row / jnp.linalg.norm(row))

    with jax.default_matmul_precision("highest"):
        return lax.fori_loop(0, size, make_orthogonal, matrix)


def draw_projection(key: jax.Array, num_features: int, head_dim: int) -> jax.Array:
    """Draws W [R, H]: rows as N(0, I), every H of them orthogonal (section 2.4)."""
    direction_key, norm_key = jax.random.split(key)
    num_blocks = -(-num_features // head_dim)
    shape = (num_blocks, head_dim, head_dim)
    gaussian_blocks = jax.random.normal(direction_key, shape, jnp.float32)
    directions = jax.vmap(orthogonalize_rows)(gaussian_blocks).reshape(-1, head_dim)
    norm_shape = (num_features, head_dim)
    gaussian_rows = jax.random.normal(norm_key, norm_shape, jnp.float32)
    norms = jnp.linalg.norm(gaussian_rows, axis=-1, keepdims=True)
    return directions[:num_features] * norms


def softmax_features(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, project: Project
) -> tuple[jax.Array, jax.Array]:
    """exp(w·q) and exp(w·k − |k|²/2) of q, k scaled by H^(−1/4), up to factors.

    The normalised product stays the same if all features of a query are multiplied by
    one number (so −|q|²/2 is left out), or if a feature is multiplied by c for all keys
    and divided by c for all queries. Such numbers are chosen that the largest feature
    of every query is 1, and so is each feature's largest value among the keys: nothing
    overflows, and no sum of weights is below 1.

    Args:
      query: [T, H].
      key: [S, H].
      mask: [S] bool, True = valid, or None.
      project: x -> W x / H^(1/4).

    Returns:
      The features of queries [T, R] and of keys [S, R], in at least float32.
    """
    query_logits = project(query)
    key_logits = project(key)
    accumulation_dtype = key_logits.dtype
    square = jnp.square(key.astype(accumulation_dtype)).sum(-1, keepdims=True)
    key_logits -= square * (key.shape[-1] ** -0.5 / 2)
    if mask is not None:
        lowest = jnp.finfo(accumulation_dtype).min
        key_logits = jnp.where(mask[:, None], key_logits, lowest)

    largest_of_feature = lax.stop_gradient(key_logits.max(0, keepdims=True))
    query_logits += largest_of_feature
    largest_of_query = lax.stop_gradient(query_logits.max(-1, keepdims=True))
    query_features = jnp.exp(query_logits - largest_of_query)
    return query_features, jnp.exp(key_logits - largest_of_feature)


def published_features(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, project: Project
) -> tuple[jax.Array, jax.Array]:
    """The softmax kernel as the published Nyströmformer's code used it.

    That code scales q and k twice, so the scores by 1/H instead of 1/√H. It subtracts
    the largest w·x of each query, and of all keys of the batch and its heads, and adds
    ε, so that small features are ε alone. Padded keys take part, as zero vectors.

    Arguments and results are those of `softmax_features`.
    """
    query_projection = project(query) * query.shape[-1] ** -0.25
    key_projection = project(key) * key.shape[-1] ** -0.25

    largest_of_query = query_projection.max(-1, keepdims=True)
    largest_of_keys = key_projection.max(keepdims=True)
    for axis_name in ("heads", "batch"):
        # lax.pmax has no derivative.
        largest_of_keys = lax.all_gather(largest_of_keys, axis_name).max(0)

    def compute_features(
        x: jax.Array, projection: jax.Array, largest: jax.Array
    ) -> jax.Array:
        square = jnp.square(x.astype(projection.dtype)).sum(-1, keepdims=True)
        half_square = square / (2 * x.shape[-1])
        return jnp.exp(projection - half_square - largest) + PUBLISHED_EPSILON

    return (
        compute_features(query, query_projection, largest_of_query),
        compute_features(key, key_projection, largest_of_keys),
    )


KERNELS = {"softmax": softmax_features, "published": published_features}


class PerformerAttention(Attention):
    """FAVOR+ attention in O((T + S) · R) memory, with one projection for all heads."""

    size_option = "num_features"
    padding_sensitive = {"kernel": "published"}
    batch_sensitive = {"kernel": "published"}

    def __init__(
        self,
        *,
        num_features: int = 256,
        kernel: str = "softmax",
        redraw_features: bool = False,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention and draws its projection.

        Args:
          num_features: R.
          kernel: "softmax", or "published", see `published_features`, with which an
            example depends on its padding and on its batch.
          redraw_features: whether every forward pass in training draws a new projection
            from the call's dropout_rng. Evaluation keeps the first one, so that it
            gives the same result each time (docs/differences.md has what the published
            code does). Inside Flax's attention layers nothing is redrawn: without
            dropout of weights they call with deterministic=True.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        check_choice("kernel", kernel, KERNELS)
        check_range("num_features", num_features, 1)
        self.num_features = num_features
        self.kernel = kernel
        self.redraw_features = redraw_features
        projection = draw_projection(
            common["rngs"].params(), num_features, self.head_dim
        )
        self.projection = RandomProjection(projection)

    @property
    def draws_in_training(self) -> bool:
        return self.redraw_features

    def for_training(self, dropout_rng: jax.Array | None) -> Attention:
        """This attention, or a copy of it with a new projection.

        Raises:
          ValueError: redraw_features without a dropout_rng.
        """
        if not self.redraw_features:
            return self
        key = check_dropout_rng("redraw_features=True", dropout_rng)
        attention = nnx.clone(self)
        projection = draw_projection(key, self.num_features, self.head_dim)
        attention.projection = RandomProjection(projection)
        return attention

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        projection = lax.stop_gradient(self.projection[...])

        def project(x: jax.Array) -> jax.Array:
            """W x / H^(1/4): [L, H] -> [L, R]."""
            rows = projection.astype(x.dtype)
            return einsum("lh,rh->lr", x, rows, precision) * x.shape[-1] ** -0.25

        make_features = KERNELS[self.kernel]
        query_features, key_features = make_features(query, key, mask, project)
        return kernel_attend(
            query_features=query_features.astype(value.dtype),
            key_features=key_features.astype(value.dtype),
            value=value,
            precision=precision,
        )
