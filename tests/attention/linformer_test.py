"""Linformer against its formula, its limit, and what shares a projection."""

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


def reference(query, key, value, mask, projection):
    """Eq. (7) of Wang et al., one head at a time, over the valid columns."""
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, n in np.ndindex(query.shape[0], query.shape[2]):
        valid = np.flatnonzero(mask[b])
        keys = projection[n][:, valid] @ key[b, valid, n]
        values = projection[n][:, valid] @ value[b, valid, n]
        out[b, :, n] = paper.softmax(query[b, :, n] @ keys.T / np.sqrt(H)) @ values
    return out


SHAPES = {"key_value": (K, MAX_LENGTH), "layerwise_per_head": (N, K, MAX_LENGTH)}


def make(sharing="key_value"):
    return cases.make("linformer", N, H, MAX_LENGTH, projection_dim=K, sharing=sharing)


@pytest.mark.parametrize(
    ("sharing", "num_queries"),
    [("key_value", 11), ("key_value", 13), ("layerwise_per_head", 13)],
)
def test_linformer_is_the_paper_with_padding_and_shorter_inputs(sharing, num_queries):
    position = np.arange(13)
    mask = np.array([position < 11, position % 3 != 1])
    valid_queries = mask if num_queries == 13 else np.ones((B, num_queries), bool)
    projection = normal(3, *SHAPES[sharing], scale=0.3)
    projections = np.broadcast_to(projection, (N, K, MAX_LENGTH))
    with jax.enable_x64(True):
        attention = make(sharing)
        attention.projection = nnx.Param(jnp.asarray(projection))
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


def test_linformer_rejects_inputs_over_max_length():
    x = jnp.ones((B, MAX_LENGTH + 1, N, H))
    with pytest.raises(ValueError, match=r"length 18 .*max_length 17"):
        make()(x, x, x)
