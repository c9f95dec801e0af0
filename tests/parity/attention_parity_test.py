"""BigBird and Longformer against transformers, Linformer against the package linformer.

Each is the same where the settings below say so. On purpose not the same: their BigBird
draws blocks for each head from numpy's global generator and takes the last block of the
padded length for the last, ours draws by (seed, block) and takes the last valid block.
Their Linformer with shared projections takes the keys for the values too.
"""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention.bigbird import attended_blocks
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

B, N, H = 3, 2, 5
every_scale = pytest.mark.parametrize("scale", [0.1, 1, 4])


def sequences(length, scale):
    rng = np.random.default_rng(0)
    return torch.from_numpy(scale * rng.normal(size=(B, length, N * H)))


def compare(attention, x, projections, expected, mask):
    """The error at valid tokens, ours on their projected query, key and value."""
    qkv = (layer(x).detach().numpy().reshape(B, -1, N, H) for layer in projections)
    actual = attention(
        *(jnp.asarray(y, jnp.float32) for y in qkv),
        mask=jnp.asarray(mask)[:, None, None],
    )
    actual = np.asarray(actual).reshape(expected.shape)
    return relative_error(actual[mask], expected.detach().numpy()[mask])


@every_scale
@pytest.mark.parametrize("padding", [0, 1], ids=["full", "last block padded"])
def test_bigbird_is_theirs(scale, padding):
    from transformers.models.big_bird.modeling_big_bird import (
        BigBirdBlockSparseAttention,
        BigBirdConfig,
        BigBirdModel,
    )

    block, num_blocks, num_random = 4, 11, 2
    length = block * num_blocks
    mask = np.arange(length) < length - padding * np.array([0, 1, 3])[:, None]
    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        num_random_blocks=num_random,
        block_size=block,
        max_position_embeddings=length,
    )
    module = BigBirdBlockSparseAttention(config, seed=0).double().eval()
    blocks, *_ = attended_blocks(jnp.ones(num_blocks, bool), num_random, 0)
    drawn = np.asarray(blocks)[1:-1, 5:]  # the rows of the ends are full
    module._bigbird_block_rand_mask_with_head = lambda **_: [drawn] * N
    x = sequences(length, scale)
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask).double(), block
    )
    expected = module(x, band, rows, columns, blocked, blocked)[0]
    options = {"block_size": block, "num_random_blocks": num_random}
    attention = make("bigbird", N, H, length, **options)
    projections = module.query, module.key, module.value
    error = compare(attention, x, projections, expected, mask)
    assert error < TOLERANCE["float32"]


@every_scale
@pytest.mark.parametrize("lengths", [(66, 47, 23), (66, 66, 66)], ids=str)
def test_longformer_is_theirs(scale, lengths):
    from transformers.models.longformer.modeling_longformer import (
        LongformerConfig,
        LongformerSelfAttention,
    )

    window, length = 6, 66
    mask = np.arange(length) < np.array(lengths)[:, None]
    torch.manual_seed(0)
    config = LongformerConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        attention_window=[window],
        attention_probs_dropout_prob=0.0,
    )
    module = LongformerSelfAttention(config, layer_id=0).double().eval()
    x, code = sequences(length, scale), torch.from_numpy(np.where(mask, 0.0, -1e4))
    given = {"is_index_masked": code < 0, "is_index_global_attn": code > 0}
    expected = module(x, attention_mask=code, **given, is_global_attn=False)[0]
    attention = make("longformer", N, H, length, window=window)
    projections = module.query, module.key, module.value
    error = compare(attention, x, projections, expected, mask)
    assert error < TOLERANCE["float32"]


@every_scale
@pytest.mark.parametrize("length", [41, 17])
def test_linformer_is_theirs(length, scale):
    package = pytest.importorskip("linformer", reason="parity needs linformer")
    torch.manual_seed(0)
    module = package.LinformerSelfAttention(N * H, 41, k=11, heads=N).double().eval()
    module.to_out = torch.nn.Identity()
    module.proj_v = module.proj_k
    attention = make("linformer", N, H, 41, projection_dim=11)
    copied = jnp.asarray(module.proj_k.detach().numpy().T, jnp.float32)
    attention.projection = nnx.Param(copied)
    x, mask = sequences(length, scale), np.ones((B, length), bool)
    projections = module.to_q, module.to_k, module.to_v
    error = compare(attention, x, projections, module(x), mask)
    assert error < TOLERANCE["float32"]
