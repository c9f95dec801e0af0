"""Nyström attention over batch and heads: independence, padding, memory, precision."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.nystrom import depthwise_conv, nystrom_attention
from nystromformer.ops import tensor_cores
from tests import paper
from tests.attention.cases import KINDS, MASK, B, H, N, make
from tests.attention.cases import MAX_LENGTH as L
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

M = 7
KERNEL = np.random.default_rng(1).normal(size=(5, N)).astype(np.float32)


def inputs(length=L, dtype=np.float32, other=None):
    """Query, key, value whose rows and heads differ in scale by up to 40."""
    rng = np.random.default_rng(0)
    scale = np.array([0.1, 1, 4])[:, None, None, None] * np.array([1, 0.7])[:, None]
    shapes = [(B, n, N, H) for n in (length, other or length, other or length)]
    return [(scale * rng.normal(size=shape)).astype(dtype) for shape in shapes]


@functools.cache
def compiled(**options):
    return jax.jit(functools.partial(nystrom_attention, num_landmarks=M, **options))


def key_mask(mask):
    return mask[:, None, None, :]


def test_nystrom_attention_is_the_paper_over_batch_and_heads():
    q, k, v = inputs()
    out = compiled()(q, k, v, None, key_mask(MASK), conv_kernel=KERNEL)
    for b, n in np.ndindex(B, N):
        args = [np.float64(x[b, :, n]) for x in (q, k, v)]
        expected = paper.nystrom(*args, MASK[b], M)
        expected += paper.convolution(args[2], KERNEL[:, n], MASK[b])
        error = relative_error(out[b, :, n][MASK[b]], expected[MASK[b]])
        assert error <= TOLERANCE["float32"]


def test_nystrom_attention_counts_padding_as_published():
    q, k, v = (np.pad(x, ((0, 0), (0, 28), (0, 0), (0, 0))) for x in inputs(42))
    mask = np.arange(70) < np.full((B, 1), 42)
    padded = compiled(landmark_padding="count")(q, k, v, None, key_mask(mask))[:, :42]
    for b, n in np.ndindex(B, N):
        head = [np.float64(x[b, :, n]) for x in (q, k, v)]
        expected = paper.published(*head, mask[b], M)[:42]
        assert relative_error(padded[b, :, n], expected) <= TOLERANCE["float32"]


def test_nystrom_attention_gradients_are_derivatives_of_the_paper():
    rng = np.random.default_rng(3)
    length, mask = 13, np.arange(13) < 11
    head = [rng.normal(size=(length, H)) for _ in range(3)] + [rng.normal(size=5)]
    cotangent = rng.normal(size=(length, H)) * mask[:, None]

    def reference(q, k, v, kernel):
        out = paper.nystrom(q, k, v, mask, M) + paper.convolution(v, kernel, mask)
        return (out * cotangent)[mask].sum()

    def loss(q, k, v, kernel):
        x = (x[None, :, None] for x in (q, k, v))
        options = {"num_landmarks": M, "conv_kernel": kernel[:, None]}
        out = nystrom_attention(*x, mask=mask, **options)
        assert out.dtype == jnp.float64
        return (out[0, :, 0] * cotangent).sum()

    with jax.enable_x64(True):
        grads = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*map(jnp.asarray, head))
        grads = [np.asarray(grad) for grad in grads]
    for i, grad in enumerate(grads):
        for _ in range(3):
            direction = rng.normal(size=grad.shape)
            sides = []
            for step in (1e-5, -1e-5):
                moved = list(head)
                moved[i] = head[i] + step * direction
                sides.append(reference(*moved))
            expected = (sides[0] - sides[1]) / 2e-5
            assert (grad * direction).sum() == pytest.approx(
                expected, rel=TOLERANCE["derivative"], abs=TOLERANCE["derivative"]
            )


def test_nystrom_attention_of_bfloat16_keeps_its_inverse_in_float32():
    args = [jnp.asarray(x, jnp.bfloat16) for x in inputs()]

    def gradient(*qkv):
        attend = functools.partial(compiled(), mask=key_mask(MASK), conv_kernel=KERNEL)
        return jax.grad(lambda *qkv: attend(*qkv).sum(), argnums=(0, 1, 2))(*qkv)

    found = list(equations(gradient, *args))
    products = [
        e
        for e in found
        if e.primitive.name == "dot_general"
        and any(v.aval.shape.count(M) >= 2 for v in (*e.invars, *e.outvars))
    ]
    assert len(products) >= 6 * 4
    full = {(jax.lax.Precision.HIGHEST,) * 2, tensor_cores(jnp.float32)}
    for product in products:
        assert product.params["precision"] in full
        assert {v.aval.dtype for v in (*product.invars, *product.outvars)} == {
            jnp.dtype("float32")
        }
    exponentials = [e for e in found if e.primitive.name == "exp"]
    assert len(exponentials) >= 3
    assert {e.outvars[0].aval.dtype for e in exponentials} == {jnp.dtype("float32")}


def test_nystrom_attention_takes_all_landmarks_beyond_max_length():
    exact = make("softmax", max_length=8)(*inputs())
    found = make("nystrom", max_length=8, num_landmarks=L)(*inputs())
    assert relative_error(found, exact) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("keys", "kernel", "text"),
    [
        (L, np.ones((4, N)), "odd.*got 4"),
        (53, KERNEL, r"self-attention.*67.*53"),
        (L, np.ones((5, 3)), r"must be \[K, N\], got \(5, 3\)"),
    ],
)
def test_nystrom_attention_rejects_a_kernel_that_does_not_fit(keys, kernel, text):
    with pytest.raises(ValueError, match=text):
        nystrom_attention(*inputs(other=keys), conv_kernel=kernel)


def test_nystrom_attention_scales_per_batch_as_published():
    """The largest norms of all heads of all examples scale Z₀."""
    q, k, v = inputs()
    heads = [[np.float64(x[b, :, n]) for x in (q, k, v)] for b, n in np.ndindex(B, N)]
    everyone = range(L)
    norms = [
        (np.abs(a).sum(0).max(), np.abs(a).sum(1).max())
        for q, k, _ in heads
        for a in [paper.kernels(q, k, everyone, everyone, everyone, M)[1]]
    ]
    scale = np.prod(np.max(norms, axis=0))
    names = "per_batch", "per_matrix"
    out, own = (np.asarray(compiled(pinv_init=x)(q, k, v)) for x in names)
    for i, (b, n) in enumerate(np.ndindex(B, N)):
        expected = paper.nystrom(*heads[i], np.ones(L), M, 6, scale)
        assert relative_error(out[b, :, n], expected) <= TOLERANCE["float32"]
    assert relative_error(own, out) > 0.01


@pytest.mark.parametrize(("length", "size"), [(1, 3), (13, 1), (67, 35), (131, 7)])
def test_depthwise_conv_is_the_sum_over_valid_neighbours(length, size):
    rng, mask = np.random.default_rng(length), np.arange(length) % 3 != 1
    value, kernel = rng.normal(size=(length, 3)), rng.normal(size=size)
    with jax.enable_x64(True):
        kept = jnp.asarray(value * mask[:, None])
        actual = jax.jit(depthwise_conv)(kept, jnp.asarray(kernel))
    expected = paper.convolution(value, kernel, mask)
    assert relative_error(actual, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("length", "num_landmarks"),
    [(64, 1), (64, 8), (64, 64), pytest.param(65_536, 64, marks=pytest.mark.slow)],
)
def test_nystrom_attention_at_extremes(length, num_landmarks, dtype):
    """Logits and lengths far from any trained model's."""
    attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=num_landmarks))
    rng = np.random.default_rng(length)
    for kind, scale in itertools.product(KINDS.values(), (2.0**-10, 1.0, 2.0**10)):
        x = [kind(rng, length, 4) * factor for factor in (scale, 1.0, 1.0)]
        out = attend(*(jnp.asarray(y, dtype)[None, :, None] for y in x))[0, :, 0]
        rounded = (np.asarray(jnp.asarray(y, dtype), float) for y in x)
        expected = paper.nystrom(*rounded, np.ones(length), num_landmarks)
        assert relative_error(out, expected) <= TOLERANCE[dtype], scale
