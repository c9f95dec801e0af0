"""cuDNN's attention: where a GPU takes it, and the numbers of what it is called with.

No GPU is needed: programs are lowered for one, and JAX's plain implementation stands in
for the kernel where numbers are compared.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.fused import attend_fused_head, attend_with_lengths
from tests.attention.cases import make, normal
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

B, N, H = 3, 2, 16
LENGTH = 134
FORWARD = "__cudnn$fmhaSoftmax"
BACKWARD = "__cudnn$fmhaSoftmaxBackward"
SOFTMAX = make("softmax", num_heads=N, head_dim=H)
MASKS = {
    "none": None,
    "right": np.arange(LENGTH) < np.array([[LENGTH], [57], [1]]),
    "left": np.arange(LENGTH) >= np.array([[0], [57], [LENGTH - 1]]),
    "holes": np.random.default_rng(0).random((B, LENGTH)) < 0.6,
    "no key": np.arange(LENGTH) < np.array([[0], [57], [0]]),
}


@pytest.fixture
def has_cudnn(monkeypatch):
    """JAX as it is where cuDNN is installed; only its version is asked for."""
    versions = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", versions)


def half(dtype=jnp.bfloat16, length=LENGTH, num_heads=N, head_dim=H):
    """Query, key and value [B, L, N, H] as shapes."""
    return [jax.ShapeDtypeStruct((B, length, num_heads, head_dim), dtype)] * 3


def lowered(function, *args, platform="cuda"):
    """The program of the sum of the outputs and its gradient, for a platform."""

    def total(*args):
        return function(*args).astype(jnp.float32).sum()

    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2)))
    return gradient.trace(*args).lower(lowering_platforms=(platform,)).as_text()


def num_calls(text):
    """How often the kernel and its gradient are called."""
    return text.count(f"@{FORWARD}("), text.count(f"@{BACKWARD}(")


def four_axes(mask):
    return None if mask is None else mask[:, None, None]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("length", [LENGTH, 67])
@pytest.mark.parametrize("has_mask", [False, True])
def test_softmax_is_cudnns_kernel_on_a_gpu(dtype, length, has_mask, has_cudnn):
    """With odd lengths, too, and no scores are stored."""
    mask = np.arange(length) < np.array([[length], [5], [0]])
    attend = functools.partial(SOFTMAX, mask=four_axes(mask) if has_mask else None)
    arguments = half(dtype, length)
    text = lowered(attend, *arguments)
    assert num_calls(text) == (1, 1)
    assert f"{length}x{length}" not in text

    text = lowered(attend, *arguments, platform="cpu")
    assert num_calls(text) == (0, 0)
    assert "dot_general" in text


BLOCKS = {
    "float32": (SOFTMAX, half(jnp.float32)),
    "turned off": (make("softmax", num_heads=N, head_dim=H, fused=False), half()),
    "bias": (functools.partial(SOFTMAX, bias=np.zeros((1, LENGTH))), half()),
    "causal": (functools.partial(SOFTMAX, is_causal=True), half()),
    "mask of queries": (
        functools.partial(SOFTMAX, mask=np.ones((LENGTH, LENGTH), bool)),
        half(),
    ),
    "dropout": (
        functools.partial(SOFTMAX, dropout_rate=0.5, dropout_rng=jax.random.key(0)),
        half(),
    ),
    "heads of 12": (make("softmax", head_dim=12), half(head_dim=12)),
    "heads of 136": (make("softmax", head_dim=136), half(head_dim=136)),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_softmax_keeps_its_blocks_where_the_kernel_cannot(name, has_cudnn):
    attend, arguments = BLOCKS[name]
    text = lowered(attend, *arguments)
    assert num_calls(text) == (0, 0)
    assert "dot_general" in text


def test_softmax_keeps_its_blocks_without_cudnn():
    assert num_calls(lowered(SOFTMAX, *half())) == (0, 0)


def test_softmax_keeps_its_blocks_on_several_devices(has_cudnn, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert num_calls(lowered(SOFTMAX, *half())) == (0, 0)


@pytest.mark.parametrize(("capability", "calls"), [("7.5", (0, 0)), ("8.0", (1, 1))])
def test_softmax_keeps_its_blocks_on_a_gpu_before_ampere(
    capability, calls, has_cudnn, monkeypatch
):
    gpus = [SimpleNamespace(compute_capability=capability)]
    monkeypatch.setattr(jax, "local_devices", lambda: gpus)
    assert num_calls(lowered(SOFTMAX, *half())) == calls


def test_softmax_on_a_cpu_is_the_same_program_where_cudnn_is_installed(has_cudnn):
    """In float32, what is traced; in half precision, the numbers."""

    def primitives(attention, dtype):
        found = equations(attention, *[jnp.ones(x.shape, dtype) for x in half()])
        return [equation.primitive.name for equation in found]

    blocks = make("softmax", num_heads=N, head_dim=H, fused=False)
    assert primitives(SOFTMAX, "float32") == primitives(blocks, "float32")

    inputs = [
        jnp.asarray(normal(seed, B, LENGTH, N, H), "bfloat16") for seed in (0, 1, 2)
    ]
    np.testing.assert_array_equal(SOFTMAX(*inputs), blocks(*inputs))


def with_gradients(attend, is_valid, *inputs):
    """The outputs of valid queries, and the gradients of the inputs."""
    rows = is_valid[..., None, None]
    out, pull_back = jax.vjp(attend, *inputs)
    gradients = pull_back(jnp.where(rows, jnp.cos(out), 0).astype(out.dtype))
    return [jnp.where(rows, out, 0), *gradients]


@pytest.mark.parametrize("length", [LENGTH, 67])
@pytest.mark.parametrize("name", MASKS)
def test_lengths_in_place_of_a_mask_are_the_same_attention(name, length):
    """Whatever the mask: keys may stand in any order. Beside our blocks."""
    mask = MASKS[name] if MASKS[name] is None else jnp.asarray(MASKS[name][:, :length])
    inputs = [
        jnp.asarray(normal(seed, B, length, N, H), "float32") for seed in range(3)
    ]
    if mask is not None:
        inputs = SOFTMAX.zero_padding(*inputs, mask)
    is_valid = np.ones((B, length), bool)
    if mask is not None:  # Without keys there is nothing to compare.
        is_valid &= np.asarray(mask).any(1)[:, None]

    def attend(query, key, value):
        return attend_with_lengths(
            query, key, value, mask, scale=H**-0.5, implementation="xla"
        )

    actual = with_gradients(attend, is_valid, *inputs)
    blocks = functools.partial(SOFTMAX, mask=four_axes(mask))
    expected = with_gradients(blocks, is_valid, *inputs)
    if mask is not None:  # Gradients of padding are zeroed before.
        rows = mask[:, :, None, None]
        actual[2:] = [jnp.where(rows, x, 0) for x in actual[2:]]
        expected[2:] = [jnp.where(rows, x, 0) for x in expected[2:]]
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= TOLERANCE["float32"]
    assert np.isfinite(attend(*inputs)).all()


def test_a_number_of_keys_that_is_wrong_would_show():
    query, key, value = (
        jnp.asarray(normal(seed, B, LENGTH, N, H)) for seed in range(3)
    )
    attend = functools.partial(attend_with_lengths, scale=H**-0.5, implementation="xla")
    mask = jnp.asarray(MASKS["holes"])
    fewer = mask.at[:, jnp.argmax(mask, 1)].set(False)
    error = relative_error(
        attend(query, key, value, fewer), attend(query, key, value, mask)
    )
    assert error > 100 * TOLERANCE["float32"]


VMAPS = {
    "queries alone": (0, None, None),
    "keys alone": (None, 0, 0),
    "another axis": (1, 1, 1),
    "all": (0, 0, 0),
}


@pytest.mark.parametrize("name", VMAPS)
@pytest.mark.parametrize("has_mask", [False, True])
def test_the_kernel_is_vmapped(name, has_mask, has_cudnn):
    """JAX's own rule needs all arrays batched along the first axis."""
    axes = VMAPS[name]
    mask = jnp.asarray(MASKS["holes"]) if has_mask else None
    shapes = [(B, LENGTH, N, H) for _ in range(3)]
    shapes = [
        shape if axis is None else (*shape[:axis], 2, *shape[axis:])
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    attend = functools.partial(SOFTMAX, mask=four_axes(mask))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    assert num_calls(lowered(jax.vmap(attend, axes), *arguments)) == (1, 1)

    def with_stand_in(query, key, value):
        return attend_with_lengths(
            query, key, value, mask, scale=H**-0.5, implementation="xla"
        )

    inputs = [
        jnp.asarray(normal(i, *shape), "float32") for i, shape in enumerate(shapes)
    ]
    is_valid = np.ones((2, B, LENGTH), bool)
    actual = with_gradients(jax.vmap(with_stand_in, axes), is_valid, *inputs)
    expected = with_gradients(jax.vmap(attend, axes), is_valid, *inputs)
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= TOLERANCE["float32"]


@pytest.mark.parametrize("has_mask", [False, True])
def test_nystroms_two_attentions_are_cudnns_where_asked_for(has_mask, has_cudnn):
    mask = four_axes(MASKS["holes"]) if has_mask else None
    for fused, calls in ((True, (2, 2)), (False, (0, 0))):
        nystrom = make("nystrom", num_heads=N, head_dim=H, num_landmarks=8, fused=fused)
        attend = functools.partial(nystrom, mask=mask)
        text = lowered(attend, *half())
        assert num_calls(text) == calls
        # The products of the inverse: six of bfloat16 parts, of float32 matrices.
        assert "num_primitive_operations = 6" in text
        assert num_calls(lowered(attend, *half(), platform="cpu")) == (0, 0)


def test_nystrom_with_fused_attentions_is_the_same_on_a_cpu():
    inputs = [
        jnp.asarray(normal(seed, B, LENGTH, N, H), "bfloat16") for seed in (0, 1, 2)
    ]
    mask = four_axes(MASKS["holes"])
    sizes = {"num_heads": N, "head_dim": H, "num_landmarks": 8}
    plain = make("nystrom", **sizes)(*inputs, mask=mask)
    fused = make("nystrom", **sizes, fused=True)(*inputs, mask=mask)
    np.testing.assert_array_equal(fused, plain)


def test_attend_fused_head_returns_float32_on_every_platform(has_cudnn):
    x = jnp.asarray(normal(0, LENGTH, H), "bfloat16")
    out = attend_fused_head(x, x, x, jnp.asarray(MASKS["holes"][0]))
    assert out.dtype == jnp.float32


def test_fused_is_the_default_of_softmax_alone():
    assert SoftmaxAttention.config_defaults()["fused"] is True
    assert make("nystrom").fused is False
