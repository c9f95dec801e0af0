"""Linformer against its formula and gradient, by what shares a projection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import paper
from tests.attention import cases
from tests.attention.cases import normal
from tests.tolerance import TOLERANCE, relative_error

# Batch, heads, the size of a head, tokens, and rows of a projection.
B = 2
N = 3
H = 5
MAX_LENGTH = 17
K = 7


def reference(query, key, value, mask, projections):
    """Eq. (7) of Wang et al., one head at a time, over the valid columns.

    Projections are E, and F where it is another matrix, of all heads or of each.
    """
    by_head = [np.broadcast_to(matrix, (N, K, MAX_LENGTH)) for matrix in projections]
    key_projections = by_head[0]
    value_projections = by_head[-1]
    out = np.zeros(query.shape)
    for b, n in np.ndindex(B, N):
        valid = np.flatnonzero(mask[b])
        keys = key_projections[n][:, valid] @ key[b, valid, n]
        values = value_projections[n][:, valid] @ value[b, valid, n]
        scores = query[b, :, n] @ keys.T / np.sqrt(H)
        out[b, :, n] = paper.softmax(scores) @ values
    return out


# The shapes of E, and of F where it is another matrix.
SHAPES = {
    "headwise": [(K, MAX_LENGTH), (K, MAX_LENGTH)],
    "key_value": [(K, MAX_LENGTH)],
    "layerwise": [(K, MAX_LENGTH)],
    "layerwise_per_head": [(N, K, MAX_LENGTH)],
}


def make(sharing="key_value"):
    return cases.make(
        "linformer",
        num_heads=N,
        head_dim=H,
        max_length=MAX_LENGTH,
        projection_dim=K,
        sharing=sharing,
    )


def random_projections(sharing):
    """E, and F where it is another matrix."""
    return [
        normal(3 + index, *shape, scale=0.3)
        for index, shape in enumerate(SHAPES[sharing])
    ]


def with_projections(sharing, projections):
    """The attention with given E, and F."""
    attention = make(sharing)
    attention.projection = nnx.Param(jnp.asarray(projections[0]))
    if len(projections) == 2:
        attention.value_projection = nnx.Param(jnp.asarray(projections[1]))
    return attention


@pytest.mark.parametrize("num_queries", [11, 13])
@pytest.mark.parametrize("sharing", SHAPES)
def test_linformer_is_the_paper_with_padding_and_shorter_inputs(sharing, num_queries):
    position = np.arange(13)
    mask = np.array([position < 11, position % 3 != 1])
    valid_queries = mask if num_queries == 13 else np.ones((B, num_queries), bool)
    projections = random_projections(sharing)
    with jax.enable_x64(True):
        attention = with_projections(sharing, projections)
        attend = jax.jit(lambda *arrays: attention(*arrays))
        for scale in (0.1, 1.0, 4.0):
            query = normal(0, B, num_queries, N, H, scale=scale)
            key = normal(1, B, 13, N, H, scale=scale)
            value = normal(2, B, 13, N, H)
            inputs = [jnp.asarray(x) for x in (query, key, value)]
            out = np.asarray(attend(*inputs, None, mask[:, None, None]))
            expected = reference(query, key, value, mask, projections)
            for b in range(B):
                rows = valid_queries[b]
                error = relative_error(out[b, rows], expected[b, rows])
                assert error <= TOLERANCE["float64"]


def test_linformer_has_other_rows_for_keys_than_for_values_headwise():
    """A negative twin: E and F exchanged are another output."""
    projections = random_projections("headwise")
    x = jnp.float32(normal(0, B, 13, N, H))
    out = with_projections("headwise", projections)(x, x, x)
    exchanged = with_projections("headwise", projections[::-1])(x, x, x)
    assert relative_error(exchanged, out) > 0.1


@pytest.mark.parametrize("sharing", SHAPES)
def test_linformer_trains_all_its_projections_with_the_papers_gradient(sharing):
    """In float64 against central differences of every projection, with padding."""
    projections = random_projections(sharing)
    mask = np.arange(13) < np.array([[13], [9]])
    query, key, value = normal(0, 3, B, 13, N, H)
    weights = normal(9, B, 13, N, H) * mask[:, :, None, None]

    def expected_loss(projections):
        out = reference(query, key, value, mask, projections)
        return (out * weights).sum()

    with jax.enable_x64(True):
        graphdef, state = nnx.split(with_projections(sharing, projections))
        key_mask = jnp.asarray(mask[:, None, None])

        def loss(state):
            out = nnx.merge(graphdef, state)(query, key, value, mask=key_mask)
            return (out * weights).sum()

        gradients = nnx.to_pure_dict(jax.grad(loss)(state))
    gradient = {name: np.asarray(array) for name, array in gradients.items()}

    names = ["projection", "value_projection"][: len(projections)]
    assert list(gradient) == names
    for index, name in enumerate(names):
        direction = normal(20 + index, *projections[index].shape)
        losses = []
        for step in (1e-5, -1e-5):
            matrices = list(projections)
            matrices[index] = matrices[index] + step * direction
            losses.append(expected_loss(matrices))
        slope = (losses[0] - losses[1]) / 2e-5
        product = np.sum(gradient[name] * direction)
        assert relative_error(product, slope) <= TOLERANCE["derivative"]
        # The last columns are for longer inputs.
        assert not gradient[name][..., 13:].any()


def test_linformer_rejects_an_unknown_sharing_in_one_line():
    with pytest.raises(ValueError, match=r"^sharing must be .*'headw.*got 'heads'$"):
        make("heads")


def test_linformer_rejects_inputs_over_max_length():
    x = jnp.ones((B, MAX_LENGTH + 1, N, H))
    with pytest.raises(ValueError, match=r"length 18 .*max_length 17"):
        make()(x, x, x)
