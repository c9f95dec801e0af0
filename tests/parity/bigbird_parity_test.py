"""BigBird against BigBirdBlockSparseAttention of transformers.

The same, once theirs is given our random blocks, and with padding only in the last
block. Not the same, on purpose: theirs draws for each head from numpy's global
generator, ours by (seed, block) alone; and its last block is that of the padded length,
ours the last with a valid token, so that adding padding changes nothing.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.bigbird import attended_blocks
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

B, N, H, BLOCK, NUM_BLOCKS, R = 3, 2, 5, 4, 11, 2
L = BLOCK * NUM_BLOCKS
FULL = np.ones((B, L), bool)
LAST_BLOCK_PADDED = np.arange(L) < np.array([L, L - 1, L - 3])[:, None]


def run(mask, scale):
    """Ours, and theirs with our random blocks, at valid tokens."""
    from transformers.models.big_bird.modeling_big_bird import (
        BigBirdBlockSparseAttention,
        BigBirdConfig,
        BigBirdModel,
    )

    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        num_random_blocks=R,
        block_size=BLOCK,
        max_position_embeddings=L,
    )
    module = BigBirdBlockSparseAttention(config, seed=0).double().eval()
    blocks, *_ = attended_blocks(jnp.ones(NUM_BLOCKS, bool), R, 0)
    drawn = np.asarray(blocks)[1:-1, 5:]  # the rows of the ends are full
    module._bigbird_block_rand_mask_with_head = lambda **_: [drawn] * N
    x = torch.from_numpy(scale * np.random.default_rng(0).normal(size=(B, L, N * H)))
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask).double(), BLOCK
    )
    with torch.no_grad():
        expected = module(x, band, rows, columns, blocked, blocked)[0].numpy()
        qkv = [layer(x).numpy() for layer in (module.query, module.key, module.value)]
    attention = make("bigbird", N, H, L, block_size=BLOCK, num_random_blocks=R)
    actual = attention(
        *(jnp.asarray(y.reshape(B, L, N, H), jnp.float32) for y in qkv),
        mask=jnp.asarray(mask)[:, None, None],
    )
    return np.asarray(actual).reshape(B, L, N * H)[mask], expected[mask]


@pytest.mark.parametrize(
    "mask", [FULL, LAST_BLOCK_PADDED], ids=["full", "last block padded"]
)
@pytest.mark.parametrize("scale", [0.1, 1, 4])
def test_bigbird_is_theirs(scale, mask):
    assert relative_error(*run(mask, scale)) < TOLERANCE["float32"]
