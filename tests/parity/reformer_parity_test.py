"""Reformer against LSHSelfAttention of transformers.

The same are the hashing, given the rotations, and attention within one chunk: unit
keys, no 1/√H, oneself only as a last resort. Not the same, on purpose: in several
chunks theirs attends to tokens of other buckets too, and counts a token once for every
round that finds it (`lsh_scope="chunk"` does both); and it wraps the first chunk around
to the last, which here is padding. Ours is equation (3) of the paper. Theirs also adds
1e-6 to the mean square of a key before it divides by the root, which shortens small
keys: hence no inputs of scale 0.1.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.reformer import ReformerAttention
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

B, N, H, CHUNK, R = 3, 2, 5, 16, 2


def theirs(num_buckets=None):
    from transformers.models.reformer.modeling_reformer import (
        LSHSelfAttention,
        ReformerConfig,
    )

    torch.manual_seed(0)
    config = ReformerConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        attention_head_size=H,
        lsh_attn_chunk_length=CHUNK,
        lsh_attention_probs_dropout_prob=0.0,
        num_hashes=R,
        num_buckets=num_buckets,
        hash_seed=0,
        is_decoder=False,
    )
    return LSHSelfAttention(config).double().eval()


def run(length, scale, mask, module=None, lsh_scope="bucket"):
    """Ours and theirs at valid tokens."""
    module = module or theirs(num_buckets=2 * -(-length // CHUNK))
    rng = np.random.default_rng(0)
    x = torch.from_numpy(scale * rng.normal(size=(B, length, N * H)))
    with torch.no_grad():
        expected = module(x, attention_mask=torch.from_numpy(mask))[0].numpy()
        shared, value = (
            jnp.asarray(layer(x).numpy().reshape(B, length, N, H), jnp.float32)
            for layer in (module.query_key, module.value)
        )
    options = {"num_hashes": R, "bucket_size": CHUNK, "lsh_scope": lsh_scope}
    attention = make("reformer", N, H, length + CHUNK, **options)
    actual = attention(shared, shared, value, mask=jnp.asarray(mask)[:, None, None])
    return np.asarray(actual).reshape(B, length, N * H)[mask], expected[mask]


@pytest.mark.parametrize("lengths", [(13, 13, 13), (13, 7, 1)], ids=["full", "padded"])
@pytest.mark.parametrize("scale", [1, 4])
def test_reformer_of_one_chunk_is_theirs(scale, lengths):
    mask = np.arange(13) < np.array(lengths)[:, None]
    assert relative_error(*run(13, scale, mask)) < TOLERANCE["float32"]


@pytest.mark.parametrize("lsh_scope", ["chunk", "bucket"])
def test_reformer_of_several_chunks_is_theirs_where_all_is_seen(lsh_scope, monkeypatch):
    """Padding fills the last chunk, so that the first sees nothing around the end."""
    valid = 4 * CHUNK
    length = valid + CHUNK
    module = theirs(num_buckets=8)
    torch.manual_seed(module.hash_seed)
    drawn = torch.randn((N, H, R, 4), dtype=torch.float64).numpy()
    more = np.zeros((N, R, 1, H))  # of the axis that so many valid tokens do not use
    rotations = np.concatenate([drawn.transpose(0, 2, 3, 1), more], axis=2)
    monkeypatch.setattr(
        ReformerAttention, "per_head", lambda *_: (jnp.asarray(rotations),)
    )
    mask = np.tile(np.arange(length) < valid, (B, 1))
    error = relative_error(*run(length, 1, mask, module, lsh_scope))
    assert (error < TOLERANCE["float32"]) == (lsh_scope == "chunk"), error
