"""Nyström attention against NystromformerSelfAttention of transformers.

Theirs scales Z₀ by the largest column sum of the whole batch, ours by each matrix's
own, so that an example does not depend on its neighbours. One head of one example at a
time theirs has nothing else to scale by, and both are the same; as with
`pinv_init="per_batch"` at once.
"""

import copy

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.nystrom import nystrom_attention
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.parity

B, L, N, H, M, K = 3, 77, 3, 5, 7, 13


def theirs():
    from transformers.models.nystromformer.modeling_nystromformer import (
        NystromformerConfig,
        NystromformerSelfAttention,
    )

    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=N * H,
        num_attention_heads=N,
        num_landmarks=M,
        segment_means_seq_len=L,
        conv_kernel_size=K,
    )
    return NystromformerSelfAttention(config).double().eval()


def one_head(module, n):
    """Head n of theirs as a module of one head."""
    single, rows = copy.deepcopy(module), slice(n * H, (n + 1) * H)
    single.num_attention_heads, single.all_head_size = 1, H
    for layer in (single.query, single.key, single.value):
        layer.weight.data = layer.weight.data[rows]
        layer.bias.data = layer.bias.data[rows]
    single.conv.weight.data = single.conv.weight.data[n : n + 1]
    single.conv.groups = 1
    return single


def run(scale, pinv_init="per_matrix"):
    """Ours, theirs one head of one example at a time, and theirs at once: [B, L, D]."""
    module = theirs()
    rng = np.random.default_rng(0)
    spread = np.array([0.3, 1, 3])[:, None, None]
    x = torch.from_numpy(scale * spread * rng.normal(size=(B, L, N * H)))
    with torch.no_grad():
        at_once = module(x)[0].numpy()
        heads = [one_head(module, n) for n in range(N)]
        singles = [torch.cat([h(row[None])[0] for h in heads], -1) for row in x]
        qkv = [layer(x) for layer in (module.query, module.key, module.value)]
    kernel = module.conv.weight.detach()[:, 0, :, 0].T
    query, key, value = (
        jnp.asarray(y.numpy().reshape(B, L, N, H), jnp.float32) for y in qkv
    )
    options = {"num_landmarks": M, "pinv_init": pinv_init}
    kernel = jnp.asarray(kernel.numpy(), jnp.float32)
    ours = nystrom_attention(query, key, value, conv_kernel=kernel, **options)
    return np.asarray(ours).reshape(B, L, N * H), torch.cat(singles).numpy(), at_once


@pytest.mark.parametrize("scale", [0.1, 1, 4])
def test_ours_is_theirs_one_head_of_one_example_at_a_time(scale):
    ours, one_at_a_time, _ = run(scale)
    for example in range(B):
        error = relative_error(ours[example], one_at_a_time[example])
        assert error < TOLERANCE["float32"], example


@pytest.mark.parametrize("scale", [0.1, 1, 4])
def test_with_one_scale_for_the_batch_ours_is_theirs_at_once(scale):
    ours, _, at_once = run(scale, pinv_init="per_batch")
    assert relative_error(ours, at_once) < TOLERANCE["float32"]
