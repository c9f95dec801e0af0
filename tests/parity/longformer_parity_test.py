"""Longformer against LongformerSelfAttention of transformers.

Theirs has projections of its own for global tokens. Ours gets query, key and value from
outside, one of each: both are the same when theirs are copies. Lengths there are
multiples of the window, and padded queries return zeros.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

B, L, N, H, WINDOW = 3, 66, 2, 5, 6
LENGTHS = np.array([66, 47, 23])
MASK = np.arange(L) < LENGTHS[:, None]


def run(num_global, mask, scale):
    """Ours and theirs at valid tokens."""
    from transformers.models.longformer.modeling_longformer import (
        LongformerConfig,
        LongformerSelfAttention,
    )

    torch.manual_seed(0)
    config = LongformerConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        attention_window=[WINDOW],
        attention_probs_dropout_prob=0.0,
    )
    module = LongformerSelfAttention(config, layer_id=0).double().eval()
    for name in ("query", "key", "value"):
        own = getattr(module, name).state_dict()
        getattr(module, f"{name}_global").load_state_dict(own)
    x = torch.from_numpy(scale * np.random.default_rng(0).normal(size=(B, L, N * H)))
    is_global = mask & (np.arange(L) < num_global)
    code = torch.from_numpy(np.where(is_global, 1e4, np.where(mask, 0.0, -1e4)))
    with torch.no_grad():
        expected = module(
            x,
            attention_mask=code,
            is_index_masked=code < 0,
            is_index_global_attn=code > 0,
            is_global_attn=num_global > 0,
        )[0].numpy()
        qkv = [layer(x).numpy() for layer in (module.query, module.key, module.value)]
    attention = make("longformer", N, H, L, window=WINDOW, num_global=num_global)
    actual = attention(
        *(jnp.asarray(y.reshape(B, L, N, H), jnp.float32) for y in qkv),
        mask=jnp.asarray(mask)[:, None, None],
    )
    return np.asarray(actual).reshape(B, L, N * H)[mask], expected[mask]


@pytest.mark.parametrize("mask", [MASK, np.ones_like(MASK)], ids=["padded", "full"])
@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize("num_global", [0, 1, 3])
def test_longformer_is_theirs(num_global, scale, mask):
    assert relative_error(*run(num_global, mask, scale)) < TOLERANCE["float32"]
