"""cuDNN's attention: which programs call it, and that lengths replace a mask.

No GPU is needed: programs are lowered for one, and JAX's plain implementation stands in
for the kernel where numbers are compared.
"""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from nystromformer.fused import attend_fused_head, attend_with_lengths
from nystromformer.masks import zero_masked
from tests.attention.cases import make, normal
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

# Batch, heads, the size of a head, and tokens.
B = 3
N = 2
H = 16
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
    """JAX as it is where cuDNN is installed; only its version is asked for.

    What is traced as on one machine must not stand for what another would do.
    """
    versions = SimpleNamespace(cudnn_get_version=lambda: 91000)
    monkeypatch.setattr(fused_attention_stablehlo, "cuda_versions", versions)
    jax.clear_caches()
    yield
    jax.clear_caches()


def shapes(dtype=jnp.bfloat16, length=LENGTH, head_dim=H):
    """Query, key and value [B, L, N, H] as shapes."""
    return [jax.ShapeDtypeStruct((B, length, N, head_dim), dtype)] * 3


def qkv(dtype, length=LENGTH):
    """Query, key and value [B, L, N, H]."""
    return [jnp.asarray(x, dtype) for x in normal(0, 3, B, length, N, H)]


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


@pytest.mark.parametrize(
    ("dtype", "length"), [("bfloat16", LENGTH), ("bfloat16", 67), ("float16", 67)]
)
@pytest.mark.parametrize("has_mask", [False, True])
def test_softmax_is_cudnns_kernel_on_a_gpu(dtype, length, has_mask, has_cudnn):
    """Odd lengths reach the kernel too, and no scores are stored."""
    mask = np.arange(length) < np.array([[length], [5], [0]])
    attend = functools.partial(SOFTMAX, mask=four_axes(mask) if has_mask else None)
    arguments = shapes(dtype, length)
    gpu_text = lowered(attend, *arguments)
    assert num_calls(gpu_text) == (1, 1)
    assert f"{length}x{length}" not in gpu_text

    cpu_text = lowered(attend, *arguments, platform="cpu")
    assert num_calls(cpu_text) == (0, 0)
    assert "dot_general" in cpu_text


def test_without_a_gradient_the_kernel_writes_nothing_for_it(has_cudnn):
    """Its results are those of JAX's own call."""
    attend_by_jax = functools.partial(
        jax.nn.dot_product_attention, implementation="cudnn"
    )
    kernels = []
    for function in (SOFTMAX, attend_by_jax):
        traced = jax.jit(function).trace(*shapes())
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        kernels.append(re.findall(rf"(:\d+) = .*@{re.escape(FORWARD)}\(", text))
    ours, of_jax = kernels
    assert ours == of_jax == [":2"]


# Attentions and arguments that the kernel cannot take.
REFUSED_BY_THE_KERNEL = {
    "float32": (SOFTMAX, shapes(jnp.float32)),
    "turned off": (make("softmax", num_heads=N, head_dim=H, fused=False), shapes()),
    "bias": (functools.partial(SOFTMAX, bias=np.zeros((1, LENGTH))), shapes()),
    "causal": (functools.partial(SOFTMAX, is_causal=True), shapes()),
    "mask of queries": (
        functools.partial(SOFTMAX, mask=np.ones((LENGTH, LENGTH), bool)),
        shapes(),
    ),
    "dropout": (
        functools.partial(SOFTMAX, dropout_rate=0.5, dropout_rng=jax.random.key(0)),
        shapes(),
    ),
    "heads of 12": (make("softmax", head_dim=12), shapes(head_dim=12)),
    "heads of 136": (make("softmax", head_dim=136), shapes(head_dim=136)),
}


@pytest.mark.parametrize("name", REFUSED_BY_THE_KERNEL)
def test_softmax_keeps_its_blocks_where_the_kernel_cannot(name, has_cudnn):
    attend, arguments = REFUSED_BY_THE_KERNEL[name]
    text = lowered(attend, *arguments)
    assert num_calls(text) == (0, 0)
    assert "dot_general" in text


def test_softmax_keeps_its_blocks_without_cudnn():
    assert num_calls(lowered(SOFTMAX, *shapes())) == (0, 0)


def test_softmax_keeps_its_blocks_on_several_devices(has_cudnn, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    assert num_calls(lowered(SOFTMAX, *shapes())) == (0, 0)


@pytest.mark.parametrize(("capability", "num_kernels"), [("7.5", 0), ("8.0", 1)])
def test_softmax_takes_the_kernel_from_ampere_on(
    capability, num_kernels, has_cudnn, monkeypatch
):
    gpus = [SimpleNamespace(compute_capability=capability)]
    monkeypatch.setattr(jax, "local_devices", lambda: gpus)
    expected = (num_kernels, num_kernels)  # The kernel and its gradient.
    assert num_calls(lowered(SOFTMAX, *shapes())) == expected


def test_softmax_on_a_cpu_is_the_same_program_where_cudnn_is_installed(has_cudnn):
    """In float32, what is traced; in half precision, the numbers."""

    def primitives(attention):
        return [
            equation.primitive.name
            for equation in equations(attention, *qkv("float32"))
        ]

    blocks = make("softmax", num_heads=N, head_dim=H, fused=False)
    assert primitives(SOFTMAX) == primitives(blocks)

    inputs = qkv("bfloat16")
    error = relative_error(SOFTMAX(*inputs), blocks(*inputs))
    assert error <= TOLERANCE["bfloat16"]


# JAX's plain implementation of what the kernel computes.
attend_with_stand_in = functools.partial(
    attend_with_lengths, scale=H**-0.5, implementation="xla"
)


@functools.partial(jax.jit, static_argnums=0)
def with_gradients(attend, is_valid, *inputs):
    """The outputs of valid queries, and the gradients of the inputs."""
    rows = is_valid[..., None, None]
    out, pull_back = jax.vjp(attend, *inputs)
    gradients = pull_back(jnp.where(rows, jnp.cos(out), 0).astype(out.dtype))
    return [jnp.where(rows, out, 0), *gradients]


@pytest.mark.parametrize(
    ("name", "length"),
    [*((name, LENGTH) for name in MASKS), ("none", 67), ("holes", 67)],
)
def test_lengths_in_place_of_a_mask_are_the_same_attention(name, length):
    """Our blocks are the reference.

    The kernel takes a number of keys and no mask: valid keys move to the front, since
    their order does not matter.
    """
    inputs = qkv("float32", length)
    mask = None
    is_valid = np.ones((B, length), bool)
    if MASKS[name] is not None:
        mask = jnp.asarray(MASKS[name][:, :length])
        inputs = [zero_masked(x, mask) for x in inputs]
        # Without keys there is nothing to compare.
        is_valid &= np.asarray(mask).any(1)[:, None]

    def attend(query, key, value):
        return attend_with_stand_in(query, key, value, mask)

    actual = with_gradients(attend, is_valid, *inputs)
    blocks = functools.partial(SOFTMAX, mask=four_axes(mask))
    expected = with_gradients(blocks, is_valid, *inputs)
    if mask is not None:
        # The attention zeroes gradients of padding before.
        rows = mask[:, :, None, None]
        actual[2:] = [jnp.where(rows, x, 0) for x in actual[2:]]
        expected[2:] = [jnp.where(rows, x, 0) for x in expected[2:]]
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= TOLERANCE["float32"]
    assert np.isfinite(attend(*inputs)).all()


def test_attention_with_a_wrong_number_of_keys_differs():
    query, key, value = qkv("float32")
    mask = jnp.asarray(MASKS["holes"])
    mask_of_fewer_keys = mask.at[:, jnp.argmax(mask, 1)].set(False)
    out = attend_with_stand_in(query, key, value, mask_of_fewer_keys)
    expected = attend_with_stand_in(query, key, value, mask)
    assert relative_error(out, expected) > 100 * TOLERANCE["float32"]


# The axes of query, key and value.
VMAPS = {
    "queries alone": (0, None, None),
    "keys alone": (None, 0, 0),
    "another axis": (1, 1, 1),
    "all": (0, 0, 0),
}


@pytest.mark.parametrize(
    ("name", "has_mask"),
    [
        ("queries alone", True),
        ("another axis", True),
        pytest.param("keys alone", True, marks=pytest.mark.slow),
        pytest.param("all", True, marks=pytest.mark.slow),
        pytest.param("queries alone", False, marks=pytest.mark.slow),
    ],
)
def test_the_kernel_is_vmapped(name, has_mask, has_cudnn):
    """JAX's own rule needs all arrays batched along the first axis."""
    axes = VMAPS[name]
    mask = jnp.asarray(MASKS["holes"]) if has_mask else None
    inputs = []
    for seed, axis in enumerate(axes):
        shape = [B, LENGTH, N, H]
        if axis is not None:
            shape.insert(axis, 2)
        inputs.append(jnp.asarray(normal(seed, *shape), "float32"))

    attend = functools.partial(SOFTMAX, mask=four_axes(mask))
    arguments = [jax.ShapeDtypeStruct(x.shape, jnp.bfloat16) for x in inputs]
    assert num_calls(lowered(jax.vmap(attend, axes), *arguments)) == (1, 1)

    def attend_by_stand_in(query, key, value):
        return attend_with_stand_in(query, key, value, mask)

    is_valid = np.ones((2, B, LENGTH), bool)
    actual = with_gradients(jax.vmap(attend_by_stand_in, axes), is_valid, *inputs)
    expected = with_gradients(jax.vmap(attend, axes), is_valid, *inputs)
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= TOLERANCE["float32"]


def make_nystrom(fused):
    """It has few iterations, so that they are unrolled."""
    return make(
        "nystrom",
        num_heads=N,
        head_dim=H,
        num_landmarks=8,
        num_pinv_iters=2,
        fused=fused,
    )


@pytest.mark.parametrize("has_mask", [False, True])
def test_nystroms_two_attentions_are_cudnns_where_asked_for(has_mask, has_cudnn):
    mask = four_axes(MASKS["holes"]) if has_mask else None
    for fused, calls in ((True, (2, 2)), (False, (0, 0))):
        nystrom = make_nystrom(fused)
        attend = functools.partial(nystrom, mask=mask)
        text = lowered(attend, *shapes())
        assert num_calls(text) == calls
        # The inverse multiplies float32 matrices by six products of bfloat16 parts.
        assert "num_primitive_operations = 6" in text
        assert num_calls(lowered(attend, *shapes(), platform="cpu")) == (0, 0)


def test_nystrom_with_fused_attentions_is_the_same_on_a_cpu():
    def attend(fused):
        nystrom = make_nystrom(fused)
        return nystrom(*qkv("bfloat16"), mask=four_axes(MASKS["holes"]))

    error = relative_error(attend(fused=True), attend(fused=False))
    assert error <= TOLERANCE["bfloat16"]


def test_attend_fused_head_returns_float32_on_every_platform(has_cudnn):
    x = jnp.asarray(normal(0, LENGTH, H), "bfloat16")
    out = attend_fused_head(x, x, x, jnp.asarray(MASKS["holes"][0]))
    assert out.dtype == jnp.float32
