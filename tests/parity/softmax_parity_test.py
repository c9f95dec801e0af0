"""Softmax and linear attention against PyTorch's own functions."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.softmax import softmax_attention
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")

pytestmark = pytest.mark.parity

B, T, S, N, H = 3, 29, 37, 2, 5
MASK = np.arange(S) < np.array([37, 23, 11])[:, None]


def their_softmax(query, key, value, mask):
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(query, key, value, attn_mask=mask)


def their_linear(query, key, value, mask):
    query, key = (torch.nn.functional.elu(x) + 1 for x in (query, key))
    weights = query @ key.mT * mask
    return weights @ value / weights.sum(-1, keepdim=True)


PAIRS = {
    "softmax": (softmax_attention, their_softmax),
    "linear": (make("linear"), their_linear),
}


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize("name", PAIRS)
def test_ours_is_theirs(name, scale):
    ours, theirs = PAIRS[name]
    rng = np.random.default_rng(0)
    x = [scale * rng.normal(size=(B, length, N, H)) for length in (T, S, S)]
    mask = MASK[:, None, None]
    tensors = [torch.from_numpy(y).transpose(1, 2) for y in x]
    expected = theirs(*tensors, torch.from_numpy(mask)).transpose(1, 2).numpy()
    inputs = [jnp.asarray(y, jnp.float32) for y in x]
    actual = ours(*inputs, mask=jnp.asarray(mask))
    assert relative_error(actual, expected) < TOLERANCE["float32"]
