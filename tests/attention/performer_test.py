"""Performer against its features written out, and against its expectation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.performer import RandomProjection, draw_projection
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

B, N, H, R = 2, 3, 5, 13
SIZES = {"num_heads": N, "head_dim": H, "max_length": 17, "num_features": R}


def performer(*inputs, projection, kernel="softmax", mask=None):
    """With that projection, of any number of features, in the inputs' dtype."""

    @jax.jit
    def attend(projection, *inputs):
        attention = make("performer", N, num_features=R, kernel=kernel)
        attention.projection = RandomProjection(projection)
        return attention(*inputs, mask=None if mask is None else mask[:, None, None])

    with jax.enable_x64(np.asarray(inputs[0]).dtype == "float64"):
        return attend(*(jnp.asarray(x) for x in (projection, *inputs)))


def feature(x, projection):
    """φ of one vector, Lemma 1, without any stabiliser."""
    x = x / len(x) ** 0.25
    return np.exp(projection @ x - x @ x / 2)


def reference(query, key, value, mask, projection):
    """Eq. (4) of Choromanski et al., a weight φ(q)·φ(k) for every valid pair."""
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, t, n in np.ndindex(out.shape[:3]):
        of_query = feature(query[b, t, n], projection)
        of_keys = [feature(k, projection) for k in key[b, mask[b], n]]
        weights = np.array(of_keys) @ of_query
        out[b, t, n] = weights @ value[b, mask[b], n] / weights.sum()
    return out


@pytest.mark.parametrize("num_queries", [13, 7])
def test_performer_is_the_paper(num_queries):
    """Heads of very different scale: each needs its own stabiliser."""
    mask = np.array([np.arange(13) < 11, np.arange(13) % 3 != 1])
    projection = normal(3, R, H)
    scale = np.array([0.1, 1.0, 4.0])[:, None]
    query = normal(0, B, num_queries, N, H) * scale
    key, value = normal(1, B, 13, N, H) * scale, normal(2, B, 13, N, H)
    out = performer(query, key, value, mask=mask, projection=projection)
    expected = reference(query, key, value, mask, projection)
    for b, valid in enumerate(mask if num_queries == 13 else [slice(None)] * B):
        for n in range(N):
            error = relative_error(out[b, valid, n], expected[b, valid, n])
            assert error <= TOLERANCE["float64"]


def test_performer_published_kernel_scales_twice_and_counts_padding():
    """Examples and heads of different scale, whose keys have one largest feature."""
    mask = np.arange(13) < np.array([[9], [13]])
    scale = np.array([0.1, 1.0, 2.0])[:, None]
    query, key, value = (normal(s, B, 13, N, H) * scale for s in range(3))
    projection = normal(3, R, H)
    options = {"mask": mask, "projection": projection, "kernel": "published"}
    out = performer(query, key, value, **options)
    counted = mask[:, :, None, None]
    q, k = query / np.sqrt(H), key * counted / np.sqrt(H)
    projected_q, projected_k = q @ projection.T, k @ projection.T
    of_queries, of_keys = (
        np.exp(projected - np.square(x).sum(-1, keepdims=True) / 2 - largest) + 1e-4
        for x, projected, largest in (
            (q, projected_q, projected_q.max(-1, keepdims=True)),
            (k, projected_k, projected_k.max()),
        )
    )
    weights = np.einsum("btnr,bsnr->bnts", of_queries, of_keys)  # of padded keys too
    expected = np.einsum("bnts,bsnh->btnh", weights, value * counted)
    expected /= weights.sum(-1).swapaxes(1, 2)[..., None]
    assert relative_error(out[mask], expected[mask]) <= TOLERANCE["float64"]


def test_performer_projection_has_no_gradient():
    inputs = np.float32([normal(s, B, 13, N, H) for s in range(3)])
    gradient = jax.grad(lambda x: performer(*inputs, projection=x).sum())
    assert not gradient(jnp.float32(normal(3, R, H))).any()


@pytest.fixture(scope="module")
def projections():
    keys = jax.random.split(jax.random.key(0), 4001)
    return np.asarray(jax.vmap(lambda key: draw_projection(key, R, H))(keys), float)


def test_draw_projection_is_orthogonal_in_blocks_with_gaussian_norms(projections):
    gram = projections @ projections.mT
    for block in (slice(0, 5), slice(5, 10), slice(10, 13)):
        inner = gram[:, block, block] * (1 - np.eye(len(range(R)[block])))
        assert np.abs(inner).max() < 1e-4
    assert (np.abs(gram[:, 0, 5:]) > 1e-2).any(0).all()
    # |w|² is χ² with H degrees of freedom: mean H, variance 2H, and norms are drawn
    # row by row.
    square = np.square(projections).sum(-1).reshape(-1)
    count = len(square)
    assert abs(square.mean() - H) < 5 * np.sqrt(2 * H / count)
    assert abs(square.var() - 2 * H) < 5 * np.sqrt((48 * H + 8 * H * H) / count)
    # Directions are uniform: of the first block each entry has mean 0, square 1/H.
    unit = projections[:, :H] / np.linalg.norm(projections[:, :H], axis=-1)[..., None]
    deviation = 5 / np.sqrt(len(unit))
    assert np.abs(unit.mean(0)).max() < deviation / np.sqrt(H)
    assert np.abs(np.square(unit).mean(0) - 1 / H).max() < deviation * 2 / H
    program = jax.jit(lambda key: draw_projection(key, 17, 8))  # without LAPACK's QR
    assert "custom_call" not in program.lower(jax.random.key(0)).as_text()


def test_performer_keeps_its_projection_and_does_not_train_it():
    attention, other = (
        make_attention("performer", **SIZES, rngs=nnx.Rngs(seed)) for seed in (0, 1)
    )
    assert not jax.tree.leaves(nnx.state(attention, nnx.Param))
    assert not np.isclose(attention.projection[...], other.projection[...]).any()
    nnx.update(other, nnx.state(attention))
    x = [jnp.float32(normal(s, B, 7, N, H)) for s in range(3)]
    np.testing.assert_array_equal(attention(*x), other(*x))
