"""Attentions against transformers and the packages linformer and performer-pytorch.

Each is the same where the settings below say so. On purpose not the same:

* Their BigBird draws blocks for each head from numpy's global generator and takes the
  last block of the padded length for the last, ours draws by (seed, block) and takes
  the last valid block.
* Their Linformer with shared projections takes the keys for the values too.
* Their Reformer attends in several chunks to tokens of other buckets too, and counts a
  token once for every round that finds it (`lsh_scope="chunk"` does both); it wraps the
  first chunk around to the last, which here is padding; and it adds 1e-6 to the mean
  square of a key, which shortens small keys: hence no inputs of scale 0.1.
* Their Performer adds ε = 1e-4 to every feature after scaling by the largest of the
  batch; ours scales each feature by its own largest key and needs no ε: with ε = 0 both
  are the same. Masks it has none: the published Nyströmformer's code gives it queries
  and keys that are scaled already, and padded keys and values as zeros. The version is
  one of that time: later ones take the largest key of each head, without its gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention.bigbird import choose_blocks
from nystromformer.attention.performer import RandomProjection
from nystromformer.attention.reformer import ReformerAttention
from tests.attention.cases import make
from tests.tolerance import TOLERANCE, relative_error

torch = pytest.importorskip("torch", reason="parity needs torch")
pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:distutils Version classes:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.qr is deprecated:UserWarning"),
]

B, N, H = 3, 2, 5
SIZES = {"hidden_size": N * H, "num_attention_heads": N}
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
    from transformers.models.big_bird import modeling_big_bird as theirs

    options = {"block_size": 4, "num_random_blocks": 2}
    num_blocks = 11
    length = 4 * num_blocks
    mask = np.arange(length) < length - padding * np.array([0, 1, 3])[:, None]
    torch.manual_seed(0)
    config = theirs.BigBirdConfig(**SIZES, **options, max_position_embeddings=length)
    module = theirs.BigBirdBlockSparseAttention(config, seed=0).double().eval()
    blocks, *_ = choose_blocks(jnp.ones(num_blocks, bool), 2, 0)
    drawn = np.asarray(blocks)[1:-1, 5:]  # the rows of the ends are full
    module._bigbird_block_rand_mask_with_head = lambda **_: [drawn] * N
    x, valid = sequences(length, scale), torch.from_numpy(mask).double()
    make_masks = theirs.BigBirdModel.create_masks_for_block_sparse_attn
    blocked, band, rows, columns = make_masks(valid, 4)
    expected = module(x, band, rows, columns, blocked, blocked)[0]
    attention = make("bigbird", N, H, length, **options)
    projections = module.query, module.key, module.value
    assert compare(attention, x, projections, expected, mask) < TOLERANCE["float32"]


@every_scale
@pytest.mark.parametrize("lengths", [(66, 47, 23), (66, 66, 66)], ids=str)
def test_longformer_is_theirs(scale, lengths):
    from transformers.models.longformer import modeling_longformer as theirs

    window, length = 6, 66
    mask = np.arange(length) < np.array(lengths)[:, None]
    torch.manual_seed(0)
    options = {"attention_window": [window], "attention_probs_dropout_prob": 0.0}
    config = theirs.LongformerConfig(**SIZES, **options)
    module = theirs.LongformerSelfAttention(config, layer_id=0).double().eval()
    x, code = sequences(length, scale), torch.from_numpy(np.where(mask, 0.0, -1e4))
    given = {"is_index_masked": code < 0, "is_index_global_attn": code > 0}
    expected = module(x, attention_mask=code, **given, is_global_attn=False)[0]
    attention = make("longformer", N, H, length, window=window)
    projections = module.query, module.key, module.value
    assert compare(attention, x, projections, expected, mask) < TOLERANCE["float32"]


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
    assert compare(attention, x, projections, module(x), mask) < TOLERANCE["float32"]


CHUNK, R = 16, 2


def their_reformer(num_buckets):
    from transformers.models.reformer import modeling_reformer as theirs

    torch.manual_seed(0)
    options = {"attention_head_size": H, "lsh_attn_chunk_length": CHUNK, "hash_seed": 0}
    options |= {"num_hashes": R, "num_buckets": num_buckets, "is_decoder": False}
    options["lsh_attention_probs_dropout_prob"] = 0.0
    config = theirs.ReformerConfig(**SIZES, **options)
    return theirs.LSHSelfAttention(config).double().eval()


def reformer_error(scale, mask, module, lsh_scope="bucket"):
    length = mask.shape[1]
    x = sequences(length, scale)
    expected = module(x, attention_mask=torch.from_numpy(mask))[0]
    options = {"num_hashes": R, "bucket_size": CHUNK, "lsh_scope": lsh_scope}
    attention = make("reformer", N, H, length + CHUNK, **options)
    projections = module.query_key, module.query_key, module.value
    return compare(attention, x, projections, expected, mask)


@pytest.mark.parametrize("lengths", [(13, 13, 13), (13, 7, 1)], ids=["full", "padded"])
@pytest.mark.parametrize("scale", [1, 4])
def test_reformer_of_one_chunk_is_theirs(scale, lengths):
    mask = np.arange(13) < np.array(lengths)[:, None]
    assert reformer_error(scale, mask, their_reformer(2)) < TOLERANCE["float32"]


@pytest.mark.parametrize("lsh_scope", ["chunk", "bucket"])
def test_reformer_of_several_chunks_is_theirs_where_all_is_seen(lsh_scope, monkeypatch):
    """Padding fills the last chunk, so that the first sees nothing around the end."""
    module = their_reformer(8)
    torch.manual_seed(module.hash_seed)
    drawn = torch.randn((N, H, R, 4), dtype=torch.float64).numpy()
    more = np.zeros((N, R, 1, H))  # of the axis that so many valid tokens do not use
    rotations = jnp.asarray(np.concatenate([drawn.transpose(0, 2, 3, 1), more], axis=2))
    monkeypatch.setattr(ReformerAttention, "per_head", lambda *_: (rotations,))
    mask = np.tile(np.arange(5 * CHUNK) < 4 * CHUNK, (B, 1))
    error = reformer_error(1, mask, module, lsh_scope)
    assert (error < TOLERANCE["float32"]) == (lsh_scope == "chunk"), error


L, F = 41, 17  # tokens, and Performer's features


@pytest.fixture(scope="module")
def performer():
    reason = "parity needs performer-pytorch"
    return pytest.importorskip("performer_pytorch.performer_pytorch", reason=reason)


def make_performer(projection, kernel="softmax"):
    attention = make("performer", N, H, L, num_features=F, kernel=kernel)
    attention.projection = RandomProjection(jnp.asarray(projection.numpy()))
    return attention


def heads(scale):
    """Query, key and value [B, N, L, H], as theirs takes them."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(scale * rng.normal(size=(B, N, L, H))) for _ in range(3)]


@every_scale
def test_performer_is_theirs_without_epsilon(performer, scale):
    torch.manual_seed(0)
    projection = performer.gaussian_orthogonal_random_matrix(F, H)
    tensors = heads(scale)
    query, key = (
        performer.softmax_kernel(x, projection_matrix=projection, is_query=first, eps=0)
        for x, first in zip(tensors, (True, False), strict=False)
    )
    expected = performer.linear_attention(query, key, tensors[2]).numpy()
    qkv = (jnp.float32(x.transpose(1, 2).numpy()) for x in tensors)
    actual = np.asarray(make_performer(projection.float())(*qkv)).swapaxes(1, 2)
    assert relative_error(actual, expected) < TOLERANCE["float32"]


def test_performer_published_kernel_and_its_gradient_are_theirs(performer):
    """Examples and heads of different scale: theirs has one largest key for all."""
    torch.manual_seed(0)
    module = performer.FastAttention(H, nb_features=F).double()
    mask = np.arange(L) < np.array([[L - 9], [L], [2]])
    scale = torch.tensor([0.2, 1.0, 3.0])[:, None, None, None]
    scale = scale * torch.tensor([1.0, 0.5])[:, None, None]
    valid = torch.from_numpy(mask)[:, None, :, None]
    tensors = [(x * scale).requires_grad_() for x in heads(1)]
    query, key, value = tensors
    out = module(query / H**0.25, key / H**0.25 * valid, value * valid) * valid
    expected = [out, *torch.autograd.grad(out.square().sum(), tensors)]

    def attend(*qkv):
        attention = make_performer(module.projection_matrix, "published")
        return attention(*qkv, mask=mask[:, None, None]) * mask[:, :, None, None]

    with jax.enable_x64(True):
        qkv = [jnp.asarray(x.detach().transpose(1, 2).numpy()) for x in tensors]
        attended, backward = jax.vjp(attend, *qkv)
        actual = [attended, *backward(2 * attended)]
    for a, e in zip(actual, expected, strict=True):
        theirs = e.detach().transpose(1, 2).numpy()
        assert relative_error(a, theirs) < TOLERANCE["float64"]
