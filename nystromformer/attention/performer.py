"""Performer: an unbiased estimate of softmax attention by random features (FAVOR+).

Choromanski et al., "Rethinking Attention with Performers", ICLR 2021. For w ~ N(0, I)

    exp(q·k) = E[exp(w·q − |q|²/2) · exp(w·k − |k|²/2)]                     (Lemma 1)

R such features of each query and key, with linear attention between them, estimate
softmax attention; rows w that are orthogonal in blocks of H estimate it better.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from nystromformer.attention.base import Attention
from nystromformer.attention.linear import kernel_attend
from nystromformer.ops import einsum
from nystromformer.validation import check_choice, check_range

PUBLISHED_EPSILON = 1e-4
Project = Callable[[jax.Array], jax.Array]  # [L, H] -> [L, R]


class RandomProjection(nnx.Variable):
    """A random array: in every checkpoint, without a gradient."""


def orthogonal_rows(matrix: jax.Array) -> jax.Array:
    """Gram-Schmidt over the rows of [H, H]; of a Gaussian matrix a uniform rotation.

    Made of products alone: LAPACK's QR may wait for the threads that run the program.
    """
    size = matrix.shape[0]

    def step(i: jax.Array, rows: jax.Array) -> jax.Array:
        done, row = jnp.where(jnp.arange(size)[:, None] < i, rows, 0), rows[i]
        for _ in range(2):  # the second time removes the rounding of the first
            row -= done @ row @ done
        return rows.at[i].set(row / jnp.linalg.norm(row))

    with jax.default_matmul_precision("highest"):
        return lax.fori_loop(0, size, step, matrix)


def draw_projection(key: jax.Array, num_features: int, head_dim: int) -> jax.Array:
    """W [R, H]: each row N(0, I), every H consecutive rows orthogonal (section 2.4)."""
    of_directions, of_norms = jax.random.split(key)
    num_blocks = -(-num_features // head_dim)
    gaussian = jax.random.normal(of_directions, (num_blocks, head_dim, head_dim))
    directions = jax.vmap(orthogonal_rows)(gaussian).reshape(-1, head_dim)
    gaussian = jax.random.normal(of_norms, (num_features, head_dim))
    norms = jnp.linalg.norm(gaussian, axis=-1, keepdims=True)
    return directions[:num_features] * norms


def softmax_features(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, project: Project
) -> tuple[jax.Array, jax.Array]:
    """exp(w·q) and exp(w·k − |k|²/2) of q, k scaled by H^(−1/4), up to factors.

    Two kinds of factors cancel in the normalised product: one of each query (so −|q|²/2
    is left out), and for each feature c of its keys against 1/c of its queries. They
    make the largest feature of every token, and the largest key of every feature, 1:
    nothing overflows, and no sum of weights is below 1.

    query [T, H], key [S, H], mask [S] -> [T, R], [S, R] in at least float32.
    """
    of_queries, of_keys = project(query), project(key)
    wide = of_keys.dtype
    square = jnp.square(key.astype(wide)).sum(-1, keepdims=True)
    of_keys -= square * (key.shape[-1] ** -0.5 / 2)
    if mask is not None:
        of_keys = jnp.where(mask[:, None], of_keys, jnp.finfo(wide).min)
    largest_key = lax.stop_gradient(of_keys.max(0, keepdims=True))
    of_queries += largest_key
    largest = lax.stop_gradient(of_queries.max(-1, keepdims=True))
    return jnp.exp(of_queries - largest), jnp.exp(of_keys - largest_key)


def published_features(
    query: jax.Array, key: jax.Array, mask: jax.Array | None, project: Project
) -> tuple[jax.Array, jax.Array]:
    """The softmax kernel as the published Nyströmformer's code used it.

    That code scales q and k twice, so the scores by 1/H instead of 1/√H. It subtracts
    the largest w·x of each query, and of all keys of the batch and its heads, and adds
    ε, so that small features are ε alone. Padded keys take part, as zero vectors.
    """

    def features(x: jax.Array, over: tuple[str, ...]) -> jax.Array:
        projected = project(x) * x.shape[-1] ** -0.25
        half = jnp.square(x.astype(projected.dtype)).sum(-1, keepdims=True)
        half /= 2 * x.shape[-1]
        largest = projected.max(None if over else -1, keepdims=True)
        for axis in over:
            largest = lax.all_gather(largest, axis).max(0)
        return jnp.exp(projected - half - largest) + PUBLISHED_EPSILON

    return features(query, ()), features(key, ("heads", "batch"))


KERNELS = {"softmax": softmax_features, "published": published_features}


class PerformerAttention(Attention):
    """FAVOR+ attention in O((T + S) · R) memory, with one projection for all heads."""

    num_features: int = 256  # R
    # With "published", see `published_features`, an example depends on its padding and
    # on its batch.
    kernel: str = "softmax"

    size_option = "num_features"
    padding_sensitive = {"kernel": "published"}
    batch_sensitive = {"kernel": "published"}

    def __init__(self, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(rngs=rngs, **options)
        check_choice("kernel", self.kernel, KERNELS)
        check_range("num_features", self.num_features, 1)
        drawn = draw_projection(rngs.params(), self.num_features, self.head_dim)
        self.projection = RandomProjection(drawn)

    def attend(self, query, key, value, mask, precision):
        projection = jax.lax.stop_gradient(self.projection[...])

        def project(x: jax.Array) -> jax.Array:
            """W x · H^(−1/4): [L, H] -> [L, R]."""
            rows = projection.astype(x.dtype)
            return einsum("lh,rh->lr", x, rows, precision) * x.shape[-1] ** -0.25

        features = KERNELS[self.kernel](query, key, mask, project)
        of_queries, of_keys = (x.astype(value.dtype) for x in features)
        return kernel_attend(of_queries, of_keys, value, precision)
