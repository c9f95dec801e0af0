"""Attentions against transformers and the packages linformer and performer-pytorch.

With the settings of these tests both compute the same. In four things they differ on
purpose:

* Their BigBird draws blocks for each head from numpy's global generator, and its last
  block is that of the padded length. Ours draws by (seed, block), and its last block is
  the last valid one.
* Their Linformer with shared projections takes the keys for the values too.
* Their Reformer attends in several chunks to tokens of other buckets too, and counts a
  token once for every round that finds it (`lsh_scope="chunk"` does both). It wraps the
  first chunk around to the last, which is padding in these tests. It adds 1e-6 to the
  mean square of a key, which shortens small keys: hence no inputs of scale 0.1.
* Their Performer adds ε = 1e-4 to every feature after scaling by the largest of the
  batch. Ours scales each feature by its own largest key and needs no ε: with ε = 0 both
  are the same. Their Performer has no mask: the published Nyströmformer's code gives it
  queries and keys that are scaled already, and padded keys and values as zeros. The
  package is of that time: later ones take the largest key of each head, without its
  gradient.
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

# The examples of a batch, the heads and the dimension of a head.
B = 3
N = 2
H = 5
SIZES = {"hidden_size": N * H, "num_attention_heads": N}
every_scale = pytest.mark.parametrize("scale", [0.1, 1, 4])


def make_sequences(length, scale):
    """Hidden states [B, length, N·H] in float64, as a tensor of torch."""
    rng = np.random.default_rng(0)
    return torch.from_numpy(scale * rng.normal(size=(B, length, N * H)))


def compare(attention, hidden_states, projections, expected, mask):
    """The error of our attention at valid tokens, on their query, key and value."""
    qkv = []
    for project in projections:
        heads = project(hidden_states).detach().numpy().reshape(B, -1, N, H)
        qkv.append(jnp.asarray(heads, jnp.float32))
    output = attention(*qkv, mask=jnp.asarray(mask)[:, None, None])
    actual = np.asarray(output).reshape(expected.shape)
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
    attention = make("bigbird", N, H, length, **options)
    [uniform] = attention.per_head(length)
    our_blocks, *_ = jax.vmap(choose_blocks, in_axes=(None, 0))(
        jnp.ones(num_blocks, bool), uniform
    )
    # The first and the last block of queries attend to all keys and draw none.
    random_blocks = np.asarray(our_blocks)[:, 1:-1, 5:]
    module._bigbird_block_rand_mask_with_head = lambda **_: list(random_blocks)

    hidden_states = make_sequences(length, scale)
    masks = theirs.BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(mask).double(), block_size=4
    )
    blocked_mask, band_mask, from_mask, to_mask = masks
    expected, *_ = module(
        hidden_states,
        band_mask=band_mask,
        from_mask=from_mask,
        to_mask=to_mask,
        from_blocked_mask=blocked_mask,
        to_blocked_mask=blocked_mask,
    )

    projections = (module.query, module.key, module.value)
    error = compare(attention, hidden_states, projections, expected, mask)
    assert error < TOLERANCE["float32"]


@every_scale
@pytest.mark.parametrize("lengths", [(66, 47, 23), (66, 66, 66)], ids=str)
def test_longformer_is_theirs(scale, lengths):
    from transformers.models.longformer import modeling_longformer as theirs

    window = 6
    max_length = 66
    mask = np.arange(max_length) < np.array(lengths)[:, None]

    torch.manual_seed(0)
    config = theirs.LongformerConfig(
        **SIZES, attention_window=[window], attention_probs_dropout_prob=0.0
    )
    module = theirs.LongformerSelfAttention(config, layer_id=0).double().eval()
    hidden_states = make_sequences(max_length, scale)
    expected, *_ = module(
        hidden_states,
        attention_mask=torch.from_numpy(np.where(mask, 0.0, -1e4)),
        is_index_masked=torch.from_numpy(~mask),
        is_index_global_attn=torch.from_numpy(np.zeros_like(mask)),
        is_global_attn=False,
    )

    attention = make("longformer", N, H, max_length, window=window)
    projections = (module.query, module.key, module.value)
    error = compare(attention, hidden_states, projections, expected, mask)
    assert error < TOLERANCE["float32"]


@every_scale
@pytest.mark.parametrize("length", [41, 17])
def test_linformer_is_theirs(length, scale):
    package = pytest.importorskip("linformer", reason="parity needs linformer")
    torch.manual_seed(0)
    module = package.LinformerSelfAttention(N * H, 41, k=11, heads=N).double().eval()
    module.to_out = torch.nn.Identity()
    module.proj_v = module.proj_k
    hidden_states = make_sequences(length, scale)
    expected = module(hidden_states)

    attention = make("linformer", N, H, 41, projection_dim=11)
    their_projection = module.proj_k.detach().numpy().T
    attention.projection = nnx.Param(jnp.asarray(their_projection, jnp.float32))
    projections = (module.to_q, module.to_k, module.to_v)
    mask = np.ones((B, length), bool)
    error = compare(attention, hidden_states, projections, expected, mask)
    assert error < TOLERANCE["float32"]


CHUNK = 16
NUM_HASHES = 2


def make_their_reformer(num_buckets):
    from transformers.models.reformer import modeling_reformer as theirs

    torch.manual_seed(0)
    config = theirs.ReformerConfig(
        **SIZES,
        attention_head_size=H,
        lsh_attn_chunk_length=CHUNK,
        lsh_attention_probs_dropout_prob=0.0,
        hash_seed=0,
        num_hashes=NUM_HASHES,
        num_buckets=num_buckets,
        is_decoder=False,
    )
    return theirs.LSHSelfAttention(config).double().eval()


def reformer_error(scale, mask, module, lsh_scope="bucket"):
    """The error of our Reformer at valid tokens, beside their module."""
    length = mask.shape[1]
    hidden_states = make_sequences(length, scale)
    expected, *_ = module(hidden_states, attention_mask=torch.from_numpy(mask))
    attention = make(
        "reformer",
        N,
        H,
        max_length=length + CHUNK,
        num_hashes=NUM_HASHES,
        bucket_size=CHUNK,
        lsh_scope=lsh_scope,
    )
    projections = (module.query_key, module.query_key, module.value)
    return compare(attention, hidden_states, projections, expected, mask)


@pytest.mark.parametrize("lengths", [(13, 13, 13), (13, 7, 1)], ids=["full", "padded"])
@pytest.mark.parametrize("scale", [1, 4])
def test_reformer_of_one_chunk_is_theirs(scale, lengths):
    mask = np.arange(13) < np.array(lengths)[:, None]
    error = reformer_error(scale, mask, make_their_reformer(num_buckets=2))
    assert error < TOLERANCE["float32"]


@pytest.mark.parametrize("lsh_scope", ["chunk", "bucket"])
def test_reformer_of_several_chunks_is_theirs_where_all_is_seen(lsh_scope, monkeypatch):
    """Padding fills the last chunk, so that the first sees nothing around the end."""
    module = make_their_reformer(num_buckets=8)
    torch.manual_seed(module.hash_seed)
    their_rotations = torch.randn((N, H, NUM_HASHES, 4), dtype=torch.float64)
    rotations = their_rotations.permute(0, 2, 3, 1).numpy()  # [N, NUM_HASHES, 4, H]
    # Ours draws a fifth axis, for the chunk of padding. Valid tokens do not use it.
    unused_axis = np.zeros((N, NUM_HASHES, 1, H))
    our_rotations = jnp.asarray(np.concatenate([rotations, unused_axis], axis=2))
    monkeypatch.setattr(ReformerAttention, "per_head", lambda *_: (our_rotations,))

    mask = np.tile(np.arange(5 * CHUNK) < 4 * CHUNK, (B, 1))
    error = reformer_error(1, mask, module, lsh_scope)
    assert (error < TOLERANCE["float32"]) == (lsh_scope == "chunk"), error


# The tokens of a sequence, and the features of a Performer.
L = 41
NUM_FEATURES = 17


@pytest.fixture(scope="module")
def performer():
    """The module of the package performer-pytorch."""
    return pytest.importorskip(
        "performer_pytorch.performer_pytorch", reason="parity needs performer-pytorch"
    )


def make_performer(projection, kernel="softmax"):
    """Our Performer with their random projection, a tensor of torch."""
    attention = make("performer", N, H, L, num_features=NUM_FEATURES, kernel=kernel)
    attention.projection = RandomProjection(jnp.asarray(projection.numpy()))
    return attention


def make_heads(scale):
    """Query, key and value [B, N, L, H] in float64, as tensors of torch."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(scale * rng.normal(size=(B, N, L, H))) for _ in range(3)]


def to_our_axes(tensor):
    """[B, N, L, H] of torch, as [B, L, N, H] of numpy."""
    return tensor.detach().transpose(1, 2).numpy()


@every_scale
def test_performer_is_theirs_without_epsilon(performer, scale):
    torch.manual_seed(0)
    projection = performer.gaussian_orthogonal_random_matrix(NUM_FEATURES, H)
    query, key, value = make_heads(scale)
    query_features = performer.softmax_kernel(
        query, projection_matrix=projection, is_query=True, eps=0
    )
    key_features = performer.softmax_kernel(
        key, projection_matrix=projection, is_query=False, eps=0
    )
    expected = performer.linear_attention(query_features, key_features, value)

    attention = make_performer(projection.float())
    actual = attention(*(jnp.float32(to_our_axes(x)) for x in (query, key, value)))
    assert relative_error(actual, to_our_axes(expected)) < TOLERANCE["float32"]


def test_performer_published_kernel_and_its_gradient_are_theirs(performer):
    """The scale differs by example and head, but their largest key is one for all."""
    torch.manual_seed(0)
    module = performer.FastAttention(H, nb_features=NUM_FEATURES).double()
    mask = np.arange(L) < np.array([[L - 9], [L], [2]])
    scale_of_examples = torch.tensor([0.2, 1.0, 3.0])[:, None, None, None]
    scale_of_heads = torch.tensor([1.0, 0.5])[:, None, None]
    scale = scale_of_examples * scale_of_heads
    tensors = [(x * scale).requires_grad_() for x in make_heads(1)]
    query, key, value = tensors

    valid = torch.from_numpy(mask)[:, None, :, None]
    scaled_query = query / H**0.25
    scaled_key = key / H**0.25 * valid
    output = module(scaled_query, scaled_key, value * valid) * valid
    gradients = torch.autograd.grad(output.square().sum(), tensors)

    def attend(query, key, value):
        attention = make_performer(module.projection_matrix, "published")
        output = attention(query, key, value, mask=mask[:, None, None])
        return output * mask[:, :, None, None]

    with jax.enable_x64(True):
        our_tensors = [jnp.asarray(to_our_axes(x)) for x in tensors]
        our_output, backward = jax.vjp(attend, *our_tensors)
        # The loss is the sum of squares of the output.
        our_gradients = backward(2 * our_output)
    assert relative_error(our_output, to_our_axes(output)) < TOLERANCE["float64"]
    for actual, expected in zip(our_gradients, gradients, strict=True):
        assert relative_error(actual, to_our_axes(expected)) < TOLERANCE["float64"]
