"""Linformer against the package linformer, with its projections copied.

Its share_kv takes the keys for the values too; the paper's key-value sharing, and ours,
is of the projections E = F alone. Masks it has none.
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


def run(length, scale=1, share_projection=False, share_kv=False):
    """Theirs without its output layer, and ours on the same projected q, k, v."""
    torch.manual_seed(0)
    module = package.LinformerSelfAttention(
        N * H, MAX_LENGTH, k=K, heads=N, share_kv=share_kv
    )
    module = module.double().eval()
    module.to_out = torch.nn.Identity()
    projections = [module.proj_k]
    if share_projection:
        module.proj_v = module.proj_k
    elif not share_kv:
        projections.append(module.proj_v)
    x = scale * np.random.default_rng(0).normal(size=(B, length, N * H))
    x = torch.from_numpy(x)
    with torch.no_grad():
        expected = module(x).numpy()
        of_values = getattr(module, "to_v", torch.nn.Linear(N * H, N * H).double())
        qkv = [layer(x).numpy() for layer in (module.to_q, module.to_k, of_values)]
    sharing = "head" if len(projections) == 2 else "key_value"
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
def test_ours_is_theirs(length, scale, share_projection):
    actual, expected = run(length, scale, share_projection)
    assert relative_error(actual, expected) < TOLERANCE["float32"]


def test_their_share_kv_is_not_the_sharing_of_projections():
    assert relative_error(*run(MAX_LENGTH, share_kv=True)) > 0.1
