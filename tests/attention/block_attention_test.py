"""Self-attention in blocks: their softmax."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.block_attention import attend_blocks, forbid
from tests import paper
from tests.tolerance import TOLERANCE, relative_error


@pytest.mark.parametrize("scale", [0.1, 1, 4])
def test_every_block_is_a_softmax_with_its_bias(scale):
    rng = np.random.default_rng(0)
    query, key, value, bias = (
        scale * rng.normal(size=shape)
        for shape in [(3, 5, 2), (3, 7, 2), (3, 7, 11), (3, 5, 7)]
    )
    allowed = rng.random((3, 5, 7)) < 0.7
    biases = jnp.asarray(bias, jnp.float32) + forbid(jnp.asarray(allowed), jnp.float32)
    x = [jnp.asarray(a, jnp.float32) for a in (query, key, value)]
    out, z = attend_blocks(*x, biases, None)
    scores = np.where(allowed, query @ key.swapaxes(1, 2) + bias, -np.inf)
    expected = paper.softmax(scores) @ value
    assert relative_error(out, expected) <= TOLERANCE["float32"]
    expected = np.logaddexp.reduce(scores, axis=-1)
    assert relative_error(z, expected) <= TOLERANCE["float32"]
