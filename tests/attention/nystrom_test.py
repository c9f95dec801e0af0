"""Nyström attention over batch and heads: independence, padding, memory, precision."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.nystrom import depthwise_conv, nystrom_attention
from nystromformer.precision import tensor_core_precision
from tests import paper
from tests.attention.cases import KINDS, MASK, B, H, N, make, normal
from tests.attention.cases import MAX_LENGTH as L
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

M = 7
KERNEL = np.float32(normal(1, 5, N))


def scaled_inputs(length=L, num_keys=None):
    """Query, key, value; examples and heads differ in scale by up to 57."""
    scale_by_example = np.array([0.1, 1, 4])[:, None, None, None]
    scale_by_head = np.array([1, 0.7])[:, None]
    scale = scale_by_example * scale_by_head
    num_keys = num_keys or length
    rng = np.random.default_rng(0)
    query = rng.normal(size=(B, length, N, H)) * scale
    key = rng.normal(size=(B, num_keys, N, H)) * scale
    value = rng.normal(size=(B, num_keys, N, H)) * scale
    return [np.float32(query), np.float32(key), np.float32(value)]


def head_in_float64(inputs, b, n):
    """Query, key and value [L, H] of one head of one sequence, in float64."""
    return [np.float64(x[b, :, n]) for x in inputs]


@functools.cache
def compile_nystrom(**options):
    return jax.jit(functools.partial(nystrom_attention, num_landmarks=M, **options))


def four_axes(mask):
    return mask[:, None, None, :]


def test_nystrom_attention_is_the_paper_over_batch_and_heads():
    inputs = scaled_inputs()
    out = compile_nystrom()(*inputs, None, four_axes(MASK), conv_kernel=KERNEL)
    for b, n in np.ndindex(B, N):
        query, key, value = head_in_float64(inputs, b, n)
        expected = paper.nystrom(query, key, value, MASK[b], M)
        expected += paper.convolution(value, KERNEL[:, n], MASK[b])
        error = relative_error(out[b, MASK[b], n], expected[MASK[b]])
        assert error <= TOLERANCE["float32"]


def test_nystrom_attention_counts_padding_as_published():
    pad_widths = ((0, 0), (0, 28), (0, 0), (0, 0))
    inputs = [np.pad(x, pad_widths) for x in scaled_inputs(42)]
    mask = np.tile(np.arange(70) < 42, (B, 1))
    out = compile_nystrom(landmark_padding="count")(*inputs, None, four_axes(mask))
    for b, n in np.ndindex(B, N):
        query, key, value = head_in_float64(inputs, b, n)
        expected = paper.published(query, key, value, mask[b], M)
        error = relative_error(out[b, :42, n], expected[:42])
        assert error <= TOLERANCE["float32"]


@pytest.mark.parametrize("num_valid", [11, M, 5])
def test_nystrom_attention_gradients_are_derivatives_of_the_paper(num_valid):
    """They are those of query, key, value and the kernel, each in three directions."""
    rng = np.random.default_rng(3)
    length = 13
    mask = np.arange(length) < num_valid
    query = rng.normal(size=(length, H))
    key = rng.normal(size=(length, H))
    value = rng.normal(size=(length, H))
    kernel = rng.normal(size=5)
    arguments = [query, key, value, kernel]
    cotangent = rng.normal(size=(length, H)) * mask[:, None]

    def reference(query, key, value, kernel):
        out = paper.nystrom(query, key, value, mask, M)
        out += paper.convolution(value, kernel, mask)
        return (out * cotangent)[mask].sum()

    def loss(query, key, value, kernel):
        out = nystrom_attention(
            query[None, :, None],
            key[None, :, None],
            value[None, :, None],
            mask=mask,
            num_landmarks=M,
            conv_kernel=kernel[:, None],
        )
        assert out.dtype == jnp.float64
        return (out[0, :, 0] * cotangent).sum()

    def central_difference(i, direction):
        """The slope of the reference along a direction of argument i."""
        ahead = list(arguments)
        ahead[i] = arguments[i] + 1e-5 * direction
        behind = list(arguments)
        behind[i] = arguments[i] - 1e-5 * direction
        return (reference(*ahead) - reference(*behind)) / 2e-5

    with jax.enable_x64(True):
        gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
        grads = [np.asarray(grad) for grad in gradient(*map(jnp.asarray, arguments))]
    for i, grad in enumerate(grads):
        for _ in range(3):
            direction = rng.normal(size=grad.shape)
            assert (grad * direction).sum() == pytest.approx(
                central_difference(i, direction),
                rel=TOLERANCE["derivative"],
                abs=TOLERANCE["derivative"],
            )


@pytest.mark.parametrize("few", ["mask", "query_mask"])
@pytest.mark.parametrize("pinv_init", ["per_matrix", "per_batch"])
def test_nystrom_attention_of_few_tokens_or_none_has_finite_gradients(pinv_init, few):
    """With fewer tokens than landmarks the inverse has no use, and may be of zeros."""
    is_valid = np.arange(L) < np.array([[5], [0], [0]])
    attend = compile_nystrom(num_pinv_iters=2, pinv_init=pinv_init)

    def total(query, key, value):
        return jnp.sin(attend(query, key, value, **{few: four_axes(is_valid)})).sum()

    gradients = jax.grad(total, argnums=(0, 1, 2))(*scaled_inputs())
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        assert np.asarray(gradient).any()


@pytest.fixture(scope="module")
def equations_in_bfloat16():
    """The equations of the gradient of query, key and value in bfloat16."""
    inputs = [jnp.asarray(x, jnp.bfloat16) for x in scaled_inputs()]

    def total(query, key, value):
        out = compile_nystrom()(
            query, key, value, mask=four_axes(MASK), conv_kernel=KERNEL
        )
        return out.sum()

    return list(equations(jax.grad(total, argnums=(0, 1, 2)), *inputs))


def variables(equation):
    return [*equation.invars, *equation.outvars]


def test_nystrom_attention_of_bfloat16_keeps_its_inverse_in_float32(
    equations_in_bfloat16,
):
    """Each product in which an [M, M] matrix takes part."""

    def has_square_matrix(equation):
        return any(x.aval.shape.count(M) >= 2 for x in variables(equation))

    products = [
        equation
        for equation in equations_in_bfloat16
        if equation.primitive.name == "dot_general" and has_square_matrix(equation)
    ]
    # Six iterations have four products each.
    assert len(products) >= 6 * 4
    highest = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)
    precisions = {highest, tensor_core_precision(jnp.float32)}
    for product in products:
        assert product.params["precision"] in precisions
        dtypes = {x.aval.dtype for x in variables(product)}
        assert dtypes == {jnp.dtype("float32")}


def test_nystrom_attention_of_bfloat16_has_exponentials_in_float32(
    equations_in_bfloat16,
):
    dtypes = [
        equation.outvars[0].aval.dtype
        for equation in equations_in_bfloat16
        if equation.primitive.name == "exp"
    ]
    assert len(dtypes) >= 3
    assert set(dtypes) == {jnp.dtype("float32")}


def test_nystrom_attention_takes_all_landmarks_beyond_max_length():
    inputs = scaled_inputs()
    exact = make("softmax", max_length=8)(*inputs)
    out = make("nystrom", max_length=8, num_landmarks=L)(*inputs)
    assert relative_error(out, exact) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("num_keys", "kernel", "query_mask", "text"),
    [
        (L, np.ones((4, N)), None, r"conv_kernel .*K odd.*N = \d, got \(4, \d\)"),
        (L, np.ones((0, N)), None, r"conv_kernel .*K odd.*N = \d, got \(0, \d\)"),
        (53, KERNEL, None, "the convolution of V needs self-attention"),
        (L, KERNEL, True, "the convolution of V needs self-attention"),
        (L, np.ones((5, 3)), None, r"must be \[K, N\].*got \(5, 3\)"),
    ],
)
def test_nystrom_attention_rejects_a_kernel_that_does_not_fit(
    num_keys, kernel, query_mask, text
):
    attend = functools.partial(
        nystrom_attention, conv_kernel=kernel, query_mask=query_mask
    )
    with pytest.raises(ValueError, match=text):
        jax.eval_shape(attend, *scaled_inputs(num_keys=num_keys))


def test_nystrom_attention_rejects_arrays_without_four_axes():
    for shape, text in [
        ((L, H), r"must be \[B, T, N, H\].*got \(67, 5\)"),
        ((L, N, H), r"got \(67, 2, 5\): add a batch axis"),
    ]:
        x = jnp.ones(shape)
        with pytest.raises(ValueError, match=text):
            nystrom_attention(x, x, x, conv_kernel=KERNEL)


def test_nystrom_attention_scales_per_batch_as_published():
    """The largest norms of all heads of all examples scale Z₀."""
    inputs = scaled_inputs()
    everyone = list(range(L))
    norms = []
    for b, n in np.ndindex(B, N):
        query, key, _ = head_in_float64(inputs, b, n)
        _, a, _ = paper.kernels(
            query,
            key,
            counted_queries=everyone,
            valid=everyone,
            counted_keys=everyone,
            num_landmarks=M,
        )
        norms.append([np.abs(a).sum(0).max(), np.abs(a).sum(1).max()])
    scale = np.prod(np.max(norms, axis=0))

    per_batch = compile_nystrom(pinv_init="per_batch")(*inputs)
    for b, n in np.ndindex(B, N):
        query, key, value = head_in_float64(inputs, b, n)
        expected = paper.nystrom(
            query,
            key,
            value,
            mask=np.ones(L),
            num_landmarks=M,
            pinv_scale=scale,
        )
        assert relative_error(per_batch[b, :, n], expected) <= TOLERANCE["float32"]
    per_matrix = compile_nystrom(pinv_init="per_matrix")(*inputs)
    assert relative_error(per_matrix, per_batch) > 0.01


@pytest.mark.parametrize(("length", "size"), [(1, 3), (13, 1), (67, 35), (131, 7)])
def test_depthwise_conv_is_the_sum_over_valid_neighbours(length, size):
    rng = np.random.default_rng(length)
    mask = np.arange(length) % 3 != 1
    value = rng.normal(size=(length, 3))
    kernel = rng.normal(size=size)
    with jax.enable_x64(True):
        zeroed_value = jnp.asarray(value * mask[:, None])
        actual = jax.jit(depthwise_conv)(zeroed_value, jnp.asarray(kernel))
    expected = paper.convolution(value, kernel, mask)
    assert relative_error(actual, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("length", "num_landmarks"),
    [(64, 1), (64, 8), (64, 64), pytest.param(65_536, 64, marks=pytest.mark.slow)],
)
def test_nystrom_attention_at_extremes_is_the_paper(length, num_landmarks, dtype):
    """Logits and lengths far from any trained model's."""
    attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=num_landmarks))
    rng = np.random.default_rng(length)
    for make_rows, scale in itertools.product(KINDS.values(), (2.0**-10, 1, 2.0**10)):
        query = jnp.asarray(make_rows(rng, length, 4) * scale, dtype)
        key = jnp.asarray(make_rows(rng, length, 4), dtype)
        value = jnp.asarray(make_rows(rng, length, 4), dtype)
        out = attend(query[None, :, None], key[None, :, None], value[None, :, None])
        expected = paper.nystrom(
            np.asarray(query, float),
            np.asarray(key, float),
            np.asarray(value, float),
            mask=np.ones(length),
            num_landmarks=num_landmarks,
        )
        assert relative_error(out[0, :, 0], expected) <= TOLERANCE[dtype], scale
