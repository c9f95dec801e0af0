"""Self-attention in blocks: their softmax, and what is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.bigbird import bigbird_attention
from nystromformer.attention.block_attention import attend_blocks, forbid
from nystromformer.attention.longformer import longformer_attention
from nystromformer.attention.reformer import reformer_attention
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


@pytest.mark.parametrize(
    "attention", [bigbird_attention, longformer_attention, reformer_attention]
)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"key": (2, 5, 3, 7), "value": (2, 5, 3, 7)}, r"T = S.*\(2, 11, 3, 7\)"),
        ({"dropout_rate": 0.1, "deterministic": False}, "dropout_rate=0.1"),
        ({"module": object()}, "sow"),
    ],
    ids=["lengths", "dropout", "weights"],
)
def test_what_cannot_be_honoured_is_refused(attention, change, text):
    arguments = dict.fromkeys(["query", "key", "value"], (2, 11, 3, 7)) | change
    for name in ("query", "key", "value"):
        arguments[name] = jnp.ones(arguments[name])
    name = attention.__name__.removesuffix("_attention")
    with pytest.raises(ValueError, match=text) as error:
        attention(**arguments)
    assert name in str(error.value)
