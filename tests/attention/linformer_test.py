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

B, N, H, MAX_LENGTH, K = 2, 3, 5, 17, 7


def reference(query, key, value, mask, key_projections, value_projections):
    """Eq. (7) of Wang et al., one head at a time, over the valid columns."""
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, n in np.ndindex(query.shape[0], query.shape[2]):
        valid = np.flatnonzero(mask[b])
        keys = key_projections[n][:, valid] @ key[b, valid, n]
        values = value_projections[n][:, valid] @ value[b, valid, n]
        out[b, :, n] = paper.softmax(query[b, :, n] @ keys.T / np.sqrt(H)) @ values
    return out


# The shapes of E, and of F where it is another matrix.
SHAPES = {
    "headwise": [(K, MAX_LENGTH), (K, MAX_LENGTH)],
    "key_value": [(K, MAX_LENGTH)],
    "layerwise": [(K, MAX_LENGTH)],
    "layerwise_per_head": [(N, K, MAX_LENGTH)],
}


def make(sharing="key_value"):
    return cases.make("linformer", N, H, MAX_LENGTH, projection_dim=K, sharing=sharing)


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
    of_heads = [np.broadcast_to(matrix, (N, K, MAX_LENGTH)) for matrix in projections]
    with jax.enable_x64(True):
        attention = with_projections(sharing, projections)
        attend = jax.jit(lambda *arrays: attention(*arrays))
        for scale in (0.1, 1.0, 4.0):
            query = normal(0, B, num_queries, N, H, scale=scale)
            key = normal(1, B, 13, N, H, scale=scale)
            value = normal(2, B, 13, N, H)
            inputs = [jnp.asarray(x) for x in (query, key, value)]
            out = np.asarray(attend(*inputs, None, mask[:, None, None]))
            expected = reference(query, key, value, mask, of_heads[0], of_heads[-1])
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
    query, key, value = (normal(seed, B, 13, N, H) for seed in range(3))
    weights = normal(9, B, 13, N, H) * mask[:, :, None, None]

    def expected_loss(*matrices):
        of_heads = [np.broadcast_to(x, (N, K, MAX_LENGTH)) for x in matrices]
        out = reference(query, key, value, mask, of_heads[0], of_heads[-1])
        return (out * weights).sum()

    with jax.enable_x64(True):
        graphdef, state = nnx.split(with_projections(sharing, projections))

        def loss(state):
            out = nnx.merge(graphdef, state)(query, key, value, None, jnp.array(valid))
            return (out * weights).sum()

        valid = mask[:, None, None]
        gradients = nnx.to_pure_dict(jax.grad(loss)(state))
    gradient = {name: np.asarray(array) for name, array in gradients.items()}

    names = ["projection", "value_projection"][: len(projections)]
    assert list(gradient) == names
    for index, name in enumerate(names):
        direction = normal(20 + index, *projections[index].shape)
        shifted = []
        for step in (1e-5, -1e-5):
            matrices = list(projections)
            matrices[index] = matrices[index] + step * direction
            shifted.append(expected_loss(*matrices))
        slope = (shifted[0] - shifted[1]) / 2e-5
        product = np.sum(gradient[name] * direction)
        assert relative_error(product, slope) <= TOLERANCE["derivative"]
        assert not gradient[name][..., 13:].any()  # columns of longer inputs


def test_linformer_rejects_an_unknown_sharing_in_one_line():
    with pytest.raises(ValueError, match=r"^sharing must be .*'headw.*got 'heads'$"):
        make("heads")


def test_linformer_rejects_inputs_over_max_length():
    x = jnp.ones((B, MAX_LENGTH + 1, N, H))
    with pytest.raises(ValueError, match=r"length 18 .*max_length 17"):
        make()(x, x, x)
