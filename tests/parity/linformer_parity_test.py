"""Linformer against the package linformer, with its projections copied, unmasked.

Its share_kv takes the keys for the values too; the paper's key-value sharing, and ours,
is of the projections E = F alone.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
package = pytest.importorskip("linformer", reason="parity needs linformer")

pytestmark = pytest.mark.parity

B, MAX_LENGTH, N, H, K = 3, 41, 2, 5, 11


def run(length, scale, share_projection):
    """Theirs without its output layer, and ours on the same projected q, k, v."""
    torch.manual_seed(0)
    module = package.LinformerSelfAttention(N * H, MAX_LENGTH, k=K, heads=N)
    module = module.double().eval()
    module.to_out = torch.nn.Identity()
    projections = [module.proj_k, module.proj_v][: 2 - share_projection]
    module.proj_v = projections[-1]
    x = scale * np.random.default_rng(0).normal(size=(B, length, N * H))
    x = torch.from_numpy(x)
    with torch.no_grad():
        expected = module(x).numpy()
        qkv = [layer(x).numpy() for layer in (module.to_q, module.to_k, module.to_v)]
    sharing = "key_value" if share_projection else "head"
    attention = make("linformer", N, H, MAX_LENGTH, projection_dim=K, sharing=sharing)
    names = ("key_projection", "value_projection")
    for name, projection in zip(names, projections, strict=False):
        copied = jnp.asarray(projection.detach().numpy().T, jnp.float32)
        setattr(attention, name, nnx.Param(copied))
    actual = attention(
        *(jnp.asarray(y.reshape(B, length, N, H), jnp.float32) for y in qkv)
    )
    return np.asarray(actual).reshape(expected.shape), expected


@pytest.mark.parametrize("share_projection", [False, True])
@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize("length", [MAX_LENGTH, 17])
def test_linformer_is_theirs(length, scale, share_projection):
    actual, expected = run(length, scale, share_projection)
    assert relative_error(actual, expected) < TOLERANCE["float32"]
