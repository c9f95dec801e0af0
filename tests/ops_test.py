"""Operations: exact on every device, with no digits lost, in products and gradients."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.dot_product import attend
from nystromformer.dropout import dropout
from nystromformer.encoder import Encoder, make_norm
from nystromformer.encoder_config import EncoderConfig
from nystromformer.nystrom import segment_means
from nystromformer.ops import (
    MAX_IDS_BY_PRODUCT,
    dense,
    first_valid_positions,
    layer_norm,
    ranks,
    sum_rows,
    take_rows,
    tensor_core_precision,
    to_blocks,
    to_blocks_with_margins,
)
from tests.attention.cases import normal
from tests.tolerance import TOLERANCE, relative_error

FEATURES = 5
FEW = 7
MANY = MAX_IDS_BY_PRODUCT + 9


def random_array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


@pytest.mark.parametrize(
    ("capability", "is_before_ampere"), [("7.5", True), ("10.0", False)]
)
def test_tensor_core_precision_is_of_ampere_and_later(
    monkeypatch, capability, is_before_ampere
):
    gpu = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    assert (tensor_core_precision(jnp.float32) == "highest") == is_before_ampere


@pytest.mark.parametrize("length", [1, 5, 6, 13])
def test_blocks_hold_every_token_once_and_then_zeros(length):
    x = np.arange(1, 2 * length + 1).reshape(length, 2)
    blocks = np.asarray(to_blocks(jnp.asarray(x), 5))
    assert blocks.shape == (-(-length // 5), 5, 2)
    flat = blocks.reshape(-1, 2)
    np.testing.assert_array_equal(flat[:length], x)
    assert not flat[length:].any()


@pytest.mark.parametrize("length", [1, 5, 13, 23])
@pytest.mark.parametrize(("size", "margin"), [(5, 0), (5, 2), (5, 5), (7, 3)])
def test_margins_are_the_neighbours_and_zeros_beyond_the_ends(length, size, margin):
    x = np.arange(1, 2 * length + 1).reshape(length, 2)
    blocks = to_blocks_with_margins(jnp.asarray(x), size, margin)
    num_blocks = -(-length // size)
    # Zeros stand in front, and behind to the margin of the last block.
    room_behind = num_blocks * size - length + margin
    padded = np.pad(x, ((margin, room_behind), (0, 0)))
    assert len(blocks) == num_blocks
    for c, block in enumerate(blocks):
        expected = padded[c * size : c * size + size + 2 * margin]
        np.testing.assert_array_equal(block, expected)


@pytest.mark.parametrize("length", [1, 7, 1024, 1031, 5003])
def test_ranks_count_what_came_before(length):
    mask = np.random.default_rng(length).random(length) < 0.6
    np.testing.assert_array_equal(ranks(jnp.asarray(mask)), np.cumsum(mask))


def test_first_valid_positions_are_the_first_positions_and_then_the_last_token():
    mask = jnp.array([False, True, True, False, True, False])
    assert first_valid_positions(mask, 2).tolist() == [1, 2]
    assert first_valid_positions(mask, 5).tolist() == [1, 2, 4, 5, 5]


def make_ids(num_ids):
    """Ids [3, 11], a third of them 0, as padding is."""
    rng = np.random.default_rng(0)
    return rng.integers(0, num_ids, (3, 11)) * (rng.random((3, 11)) < 0.7)


@pytest.fixture(params=["cpu", "cuda", "default"])
def device(request, monkeypatch):
    """Takes the branch of that device; a CPU computes it."""

    def take_branch(*args, **branches):
        return branches[request.param](*args)

    if request.param != "cpu":
        monkeypatch.setattr(jax.lax, "platform_dependent", take_branch)


@pytest.mark.parametrize("num_ids", [FEW, MANY])
def test_take_rows_has_the_gradient_of_an_indexed_array(device, num_ids):
    ids = make_ids(num_ids)
    table = jnp.asarray(normal(0, num_ids, FEATURES), "float32")
    cotangent = jnp.asarray(normal(1, *ids.shape, FEATURES), "float32")
    rows, pull_back = jax.vjp(lambda table: take_rows(table, jnp.asarray(ids)), table)
    np.testing.assert_array_equal(rows, np.asarray(table)[ids])

    expected = np.zeros((num_ids, FEATURES))
    np.add.at(expected, ids, np.asarray(cotangent, float))
    (actual,) = pull_back(cotangent)
    assert actual.dtype == jnp.float32
    assert relative_error(actual, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("num_ids", [FEW, MANY])
def test_take_rows_of_ids_outside_the_table_are_nan_and_add_to_no_gradient(
    device, num_ids
):
    ids = jnp.array([-1, 2, num_ids, -num_ids])
    table = jnp.ones((num_ids, FEATURES))
    rows, pull_back = jax.vjp(lambda table: take_rows(table, ids), table)
    (gradient,) = pull_back(jnp.ones_like(rows))
    assert np.isnan(rows[ids != 2]).all()
    expected = np.zeros_like(table)
    expected[2] = 1
    np.testing.assert_array_equal(rows[1], table[2])
    np.testing.assert_array_equal(gradient, expected)


@pytest.mark.parametrize("num_ids", [FEW, MANY])
def test_take_rows_of_bfloat16_has_a_gradient_of_bfloat16(device, num_ids):
    table = jnp.ones((num_ids, FEATURES), "bfloat16")
    ids = jnp.asarray(make_ids(num_ids))
    rows, pull_back = jax.vjp(lambda table: take_rows(table, ids), table)
    (gradient,) = pull_back(jnp.ones_like(rows))
    assert gradient.dtype == jnp.bfloat16
    counts = np.bincount(ids.ravel(), minlength=num_ids)
    np.testing.assert_array_equal(gradient, np.tile(counts[:, None], FEATURES))


@pytest.mark.parametrize("num_ids", [FEW, MANY])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_take_rows_of_bfloat16_compiles_for_every_platform(platform, num_ids):
    def total(table, ids):
        return take_rows(table, ids).sum()

    table = jax.ShapeDtypeStruct((num_ids, FEATURES), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((3, 11), jnp.int32)
    jax.jit(jax.grad(total)).trace(table, ids).lower(lowering_platforms=(platform,))


def test_take_rows_by_ids_of_a_dtype_that_does_not_reach_the_last_row(device):
    """Neither as an id nor, for ids that are left out, as the number of rows."""
    ids = jnp.asarray([0, 0, 3, 255], jnp.uint8)
    table = jnp.ones((300, FEATURES))
    rows, pull_back = jax.vjp(lambda table: take_rows(table, ids), table)
    (gradient,) = pull_back(jnp.ones_like(rows))
    counts = np.bincount(ids, minlength=300)
    np.testing.assert_array_equal(gradient, np.tile(counts[:, None], FEATURES))


def test_sum_rows_leaves_out_the_last_id(device):
    x = jnp.asarray(normal(0, 11, FEATURES), "float32")
    ids = make_ids(FEW)[0]
    expected = np.zeros((2, FEATURES))
    for row, number in zip(np.asarray(x), ids, strict=True):
        if number < 2:
            expected[number] += row
    actual = sum_rows(x, jnp.minimum(ids, 2), 2)
    assert relative_error(actual, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("num_ids", [FEW, MANY])
@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_only_a_cpu_scatters_the_gradient_of_a_small_vocabulary(num_ids, platform):
    config = EncoderConfig(
        vocab_size=num_ids, max_length=11, num_layers=1, attention="identity"
    )
    graphdef, state = nnx.split(Encoder(config, rngs=nnx.Rngs(0)))

    def total(state, ids):
        out, _ = nnx.merge(graphdef, state)(ids)
        return out.sum()

    ids = jax.ShapeDtypeStruct((3, 11), jnp.int32)
    gradient = jax.jit(jax.grad(total)).trace(state, ids)
    text = gradient.lower(lowering_platforms=(platform,)).as_text()
    # On a GPU that of id 0 is written into the gradient by another scatter.
    expected = {"cpu": 1, "cuda": 2, "tpu": 1}
    if num_ids == FEW:
        expected = {"cpu": 1, "cuda": 0, "tpu": 0}
    assert text.count('"stablehlo.scatter"(') == expected[platform]


@pytest.mark.parametrize(("platform", "products"), [("cuda", 2), ("tpu", 0)])
def test_what_depends_on_the_platform_lowers_with_its_gradient(platform, products):
    """The function is under vmap; no such device is needed."""

    def total(x, key):
        landmarks = dropout(segment_means(x, 2)[0], 0.5, key)
        return attend(landmarks, x, x, are_keys_shared=True).sum()

    x = jnp.ones((3, 7, 5))
    keys = jax.random.split(jax.random.key(1), 3)
    gradient = jax.jit(jax.vmap(jax.value_and_grad(total)))
    lowered = gradient.trace(x, keys).lower(lowering_platforms=(platform,))
    # Forward and gradient, each with the six products of bfloat16 parts.
    assert lowered.as_text().count("num_primitive_operations = 6") == products


def output_and_gradients(function, x, kernel, bias, cotangent):
    """The output, and the gradients of x, kernel or scale, and bias, compiled."""

    @jax.jit
    def compute(*inputs):
        out, backward = jax.vjp(function, *inputs)
        gradients = backward(cotangent.astype(out.dtype))
        return [out, *gradients]

    return compute(x, kernel, bias)


@pytest.mark.parametrize(
    ("shape", "width"), [((7, 5), 4), ((2, 3, 7, 5), 4), ((2, 7, 257), 257)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dense_and_its_gradients_are_those_of_a_product_and_a_sum(shape, width, dtype):
    x = random_array(0, *shape)
    kernel = random_array(1, shape[-1], width)
    bias = random_array(2, width)
    cotangent = random_array(3, *shape[:-1], width)

    def plain(x, kernel, bias):
        return x @ kernel + jnp.broadcast_to(bias, cotangent.shape)

    expected = output_and_gradients(plain, x, kernel, bias, cotangent)
    actual = output_and_gradients(dense, x.astype(dtype), kernel, bias, cotangent)

    assert [array.dtype for array in actual] == [dtype, dtype, "float32", "float32"]
    tolerance = TOLERANCE["same" if dtype == "float32" else "bfloat16"]
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= tolerance


def test_gradients_of_bfloat16_are_summed_in_float32():
    """bfloat16 ends at 256 when it adds ones."""
    count = 2**12 + 1
    ones = jnp.ones((count, 1), jnp.bfloat16)
    _, gradients = jax.vjp(dense, ones, jnp.ones((1, 1)), jnp.ones(1))
    _, kernel_gradient, bias_gradient = gradients(ones)
    assert float(kernel_gradient[0, 0]) == count
    assert float(bias_gradient[0]) == count


@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 5, 3, 64)])
def test_layer_norm_and_its_gradients_are_those_of_float64(shape, mean):
    """The numbers have 5 binary places, so that their mean is exact in float32."""
    x = mean + np.round(32 * random_array(0, *shape)) / 32
    scale = 1 + random_array(1, 64)
    bias = random_array(2, 64)
    cotangent = random_array(3, *shape)

    def plain(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        normal = centred / deviation
        scale = jnp.broadcast_to(scale, x.shape)
        return normal * scale + jnp.broadcast_to(bias, x.shape)

    def norm(x, scale, bias):
        return layer_norm(x, scale, bias, 1e-5)

    with jax.enable_x64(True):
        inputs = [np.asarray(array, float) for array in (x, scale, bias)]
        expected = output_and_gradients(plain, *inputs, jnp.asarray(cotangent))
    actual = output_and_gradients(norm, x, scale, bias, cotangent)
    for array, expected_array in zip(actual, expected, strict=True):
        assert array.dtype == jnp.float32
        assert relative_error(array, expected_array) <= TOLERANCE["same"]


def test_norms_of_a_model_are_exact_where_the_mean_is_large():
    config = EncoderConfig(vocab_size=1, max_length=8)
    x = np.round(32 * random_array(0, 1, 8, 64)) / 32
    norm = make_norm(config, nnx.Rngs(0))
    assert relative_error(norm(1000 + x), norm(x)) <= TOLERANCE["same"]
