"""Performer: softmax attention in expectation, by positive random features (FAVOR+).

Choromanski et al., "Rethinking Attention with Performers", ICLR 2021. For w ~ N(0, I)

    exp(q·k) = E[exp(w·q − |q|²/2) · exp(w·k − |k|²/2)]                     (Lemma 1)

so R features of each query and key, and linear attention between them, estimate
softmax attention; rows w that are orthogonal in blocks of H estimate it better.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_choice, check_range
from nystromformer.attention.linear import kernel_attend
from nystromformer.ops import at_least_float32, zeroed

RELU_EPSILON = 1e-3  # of the authors' code: no query is without a key
PUBLISHED_EPSILON = 1e-4


class RandomProjection(nnx.Variable):
    """A random array: in every checkpoint, without a gradient."""


def draw_projection(key: jax.Array, num_features: int, head_dim: int) -> jax.Array:
    """W [R, H]: each row N(0, I), every H consecutive rows orthogonal (section 2.4)."""
    of_directions, of_norms = jax.random.split(key)
    num_blocks = -(-num_features // head_dim)
    directions = jax.random.orthogonal(of_directions, head_dim, (num_blocks,))
    directions = directions.reshape(-1, head_dim)[:num_features]
    gaussian = jax.random.normal(of_norms, (num_features, head_dim))
    return directions * jnp.linalg.norm(gaussian, axis=-1, keepdims=True)


def softmax_features(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    projection: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[jax.Array, jax.Array]:
    """exp(w·q) and exp(w·k − |k|²/2) of q, k scaled by H^(−1/4), up to what cancels.

    What cancels in the normalised product: a factor of each query (so −|q|²/2 is left
    out), and for each feature a factor c of its keys against 1/c of its queries. The
    factors make the largest feature of every token, and the largest key of every
    feature, 1: nothing overflows, and no sum of weights is below 1.

    query [T, H], key [S, H], mask [S], W [R, H] -> [T, R], [S, R] in at least float32.
    """
    of_queries = project(query, projection, precision)
    of_keys = project(key, projection, precision)
    wide = of_keys.dtype
    square = jnp.square(key.astype(wide)).sum(-1, keepdims=True)
    of_keys -= square * (key.shape[-1] ** -0.5 / 2)
    if mask is not None:
        of_keys = jnp.where(mask[:, None], of_keys, jnp.finfo(wide).min)
    largest_key = jax.lax.stop_gradient(of_keys.max(0, keepdims=True))
    of_queries += largest_key
    largest = jax.lax.stop_gradient(of_queries.max(-1, keepdims=True))
    return jnp.exp(of_queries - largest), jnp.exp(of_keys - largest_key)


def relu_features(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    projection: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[jax.Array, jax.Array]:
    """max(w·x, 0) + ε likewise, zero for keys that do not count."""
    query_features, key_features = (
        jax.nn.relu(project(x, projection, precision)) + RELU_EPSILON
        for x in (query, key)
    )
    return query_features, zeroed(key_features, mask)


def published_features(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array | None,
    projection: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> tuple[jax.Array, jax.Array]:
    """The softmax kernel as the published Nyströmformer's code used it.

    That code scales q and k twice, so the scores by 1/H instead of 1/√H. It subtracts
    the largest w·x of each query, and that of all keys of the batch and its heads, and
    adds ε, so that small features are ε alone. Padded keys count, as zero vectors.
    """

    def features(x: jax.Array, over: tuple[str, ...]) -> jax.Array:
        projected = project(x, projection, precision) * x.shape[-1] ** -0.25
        half = jnp.square(x.astype(projected.dtype)).sum(-1, keepdims=True)
        half /= 2 * x.shape[-1]
        largest = projected.max(None if over else -1, keepdims=True)
        for axis in over:
            largest = jax.lax.all_gather(largest, axis).max(0)
        return jnp.exp(projected - half - largest) + PUBLISHED_EPSILON

    return features(query, ()), features(key, ("heads", "batch"))


def project(
    x: jax.Array, projection: jax.Array, precision: jax.lax.PrecisionLike
) -> jax.Array:
    """W x · H^(−1/4): [L, H], [R, H] -> [L, R] in at least float32."""
    projected = jnp.einsum(
        "lh,rh->lr",
        x,
        projection.astype(x.dtype),
        precision=precision,
        preferred_element_type=at_least_float32(x.dtype),
    )
    return projected * x.shape[-1] ** -0.25


KERNELS = {
    "softmax": softmax_features,
    "relu": relu_features,
    "published": published_features,
}


class PerformerAttention(Attention):
    """FAVOR+ attention in O((T + S) · R) memory, with one projection for all heads.

    Options:
      num_features: R.
      kernel: "softmax", "relu", or "published": see `published_features`. An example
        then depends on its padding and on its batch.
      redraw_every: steps between draws, for `at_step`; 0 = the first draw stays.
    """

    size_option = "num_features"
    padding_sensitive = {"kernel": "published"}

    def __init__(
        self,
        *,
        head_dim: int,
        rngs: nnx.Rngs,
        num_features: int = 256,
        kernel: str = "softmax",
        redraw_every: int = 0,
        **sizes: Any,
    ):
        check_choice("kernel", kernel, KERNELS)
        check_range("num_features", num_features, 1)
        check_range("redraw_every", redraw_every, 0)
        self.num_features = num_features
        self.head_dim = head_dim
        self.kernel = kernel
        self.redraw_every = redraw_every
        # As numbers, not a typed key: every checkpoint format takes them.
        self.key_data = RandomProjection(
            jax.random.bits(rngs.params(), (2,), jnp.uint32)
        )
        self.projection = RandomProjection(self.draw(0))

    def draw(self, number: int | jax.Array) -> jax.Array:
        """The projection [R, H] of that number, from 0."""
        key = jax.random.wrap_key_data(self.key_data[...], impl="threefry2x32")
        return draw_projection(
            jax.random.fold_in(key, number), self.num_features, self.head_dim
        )

    def at_step(self, step: int | jax.Array) -> None:
        """Sets the projection of that training step."""
        if self.redraw_every:
            self.projection[...] = self.draw(step // self.redraw_every)

    def attend(self, query, key, value, mask, precision):
        features = KERNELS[self.kernel]
        of_queries, of_keys = (
            x.astype(value.dtype)
            for x in features(query, key, mask, self.projection[...], precision)
        )
        return kernel_attend(of_queries, of_keys, value, precision)
