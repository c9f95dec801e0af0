"""Nyström attention over batch and heads: independence, padding, memory, precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.attention.softmax import softmax_attention
from tests import paper
from tests.jaxpr import equations, quadratic_shapes
from tests.tolerance import TOLERANCE, relative_error

B, L, N, H, M = 3, 67, 2, 5, 7
LENGTHS = np.array([67, 41, 23])
MASK = np.arange(L) < LENGTHS[:, None]
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


@functools.cache
def gradients(**options):
    """Outputs and gradients of a loss over valid outputs, wrt q, k, v, kernel."""

    def loss(query, key, value, kernel, mask):
        out = compiled(**options)(query, key, value, None, mask, conv_kernel=kernel)
        kept = jnp.where(mask[:, 0, 0, :, None, None], out, 0)
        weights = jnp.cos(jnp.arange(kept.size)).reshape(kept.shape)
        return (kept * weights).sum(), kept

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))


def key_mask(mask):
    return mask[:, None, None, :]


def test_lifts_the_paper_over_batch_and_heads_with_the_skip_of_v():
    q, k, v = inputs()
    out = compiled()(q, k, v, None, key_mask(MASK), conv_kernel=KERNEL)
    for b in range(B):
        for n in range(N):
            args = [np.float64(x[b, :, n]) for x in (q, k, v)]
            expected = paper.nystrom(*args, MASK[b], M)
            expected += paper.convolution(args[2], KERNEL[:, n], MASK[b])
            error = relative_error(out[b, :, n][MASK[b]], expected[MASK[b]])
            assert error <= TOLERANCE["float32"]


def test_a_row_does_not_depend_on_its_batch():
    q, k, v = inputs()
    mask = key_mask(MASK)
    together = compiled()(q, k, v, None, mask)
    for b in range(B):
        row = slice(b, b + 1)
        alone = compiled()(q[row], k[row], v[row], None, mask[row])
        error = relative_error(together[row][:, MASK[b]], alone[:, MASK[b]])
        assert error <= TOLERANCE["same"]


def test_one_scale_for_the_batch_would_make_a_row_depend_on_it():
    heads = [[np.float64(x[b, :, 0]) for x in inputs()] for b in range(B)]
    everyone = range(L)
    matrices = [
        paper.kernels(q, k, everyone, everyone, everyone, M)[1] for q, k, _ in heads
    ]
    largest = max(paper.initial_scale(a) for a in matrices)
    moved = [
        relative_error(
            paper.nystrom(*head, np.ones(L), M, 6, largest),
            paper.nystrom(*head, np.ones(L), M),
        )
        for head in heads
    ]
    assert max(moved) > 0.01


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_padding_changes_no_output_and_no_gradient(garbage):
    (_, clean), grads = gradients()(*inputs(), KERNEL, key_mask(MASK))
    dirty_inputs = [np.where(MASK[:, :, None, None], x, garbage) for x in inputs()]
    (_, dirty), dirty_grads = gradients()(
        *map(np.float32, dirty_inputs), KERNEL, key_mask(MASK)
    )
    np.testing.assert_array_equal(dirty, clean)
    for one, other in zip(dirty_grads, grads, strict=True):
        np.testing.assert_array_equal(one, other)
    for grad in dirty_grads[:3]:
        assert not np.asarray(grad)[~MASK].any()
        assert np.asarray(grad)[MASK].any(-1).all()
    unmasked = compiled()(*map(np.float32, dirty_inputs))
    assert not np.allclose(unmasked[1, :41], clean[1, :41], rtol=0.1)


@pytest.mark.parametrize("segments", ["valid", "padded"])
def test_adding_padding_changes_nothing_unless_segments_are_padded(segments):
    function = compiled(segments=segments)
    q, k, v = inputs(42)
    short = function(q, k, v, conv_kernel=KERNEL)
    q, k, v = (np.pad(x, ((0, 0), (0, 28), (0, 0), (0, 0))) for x in (q, k, v))
    mask = np.arange(70) < np.full((B, 1), 42)
    padded = function(q, k, v, None, key_mask(mask), conv_kernel=KERNEL)[:, :42]
    errors = [relative_error(padded[b], short[b]) for b in range(B)]
    if segments == "valid":
        assert max(errors) <= TOLERANCE["float32"]
        return
    assert max(errors) > 0.01
    for b in range(B):
        for n in range(N):
            head = [np.float64(x[b, :, n]) for x in (q, k, v)]
            expected = paper.published(*head, mask[b], M)
            expected += paper.convolution(head[2], KERNEL[:, n], mask[b])
            error = relative_error(padded[b, :, n], expected[:42])
            assert error <= TOLERANCE["float32"]


@pytest.mark.parametrize(("queries", "keys"), [(101, 101), (101, 103)])
def test_nothing_of_t_times_s_is_formed_forward_or_backward(queries, keys):
    q, k, v = inputs(queries, other=keys)
    mask = np.ones((B, 1, 1, keys), bool)

    def gradient(attention):
        return jax.grad(lambda *x: attention(*x, mask=mask).sum(), argnums=(0, 1, 2))

    find = functools.partial(quadratic_shapes, queries, keys)
    attention = functools.partial(nystrom_attention, num_landmarks=M)
    assert not find(attention, q, k, v)
    assert not find(gradient(attention), q, k, v)
    assert find(gradient(softmax_attention), q, k, v)


def test_gradients_are_derivatives_of_the_paper():
    rng = np.random.default_rng(3)
    length, mask = 13, np.arange(13) < 11
    head = [rng.normal(size=(length, H)) for _ in range(3)] + [rng.normal(size=5)]
    cotangent = rng.normal(size=(length, H)) * mask[:, None]

    def reference(q, k, v, kernel):
        out = paper.nystrom(q, k, v, mask, M) + paper.convolution(v, kernel, mask)
        return (out * cotangent)[mask].sum()

    def loss(q, k, v, kernel):
        def lift(x):
            return x[None, :, None]

        out = nystrom_attention(
            lift(q),
            lift(k),
            lift(v),
            mask=mask,
            num_landmarks=M,
            conv_kernel=kernel[:, None],
        )
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


def test_bfloat16_keeps_the_inverse_and_the_softmaxes_in_float32():
    args = [jnp.asarray(x, jnp.bfloat16) for x in inputs()]
    mask = key_mask(MASK)
    found = list(equations(gradients(), *args, KERNEL, mask))
    products = [
        e
        for e in found
        if e.primitive.name == "dot_general"
        and any(v.aval.shape.count(M) >= 2 for v in (*e.invars, *e.outvars))
    ]
    assert len(products) >= 6 * 4
    for product in products:
        highest = jax.lax.Precision.HIGHEST
        assert product.params["precision"] == (highest, highest)
        assert {v.aval.dtype for v in (*product.invars, *product.outvars)} == {
            jnp.dtype("float32")
        }
    exponentials = [e for e in found if e.primitive.name == "exp"]
    assert len(exponentials) >= 3
    assert {e.outvars[0].aval.dtype for e in exponentials} == {jnp.dtype("float32")}


def test_bfloat16_output_is_near_the_float32_output_on_the_same_inputs():
    args = [jnp.asarray(x, jnp.bfloat16) for x in inputs()]
    options = {"mask": key_mask(MASK), "conv_kernel": KERNEL}
    out = compiled()(*args, **options)
    assert out.dtype == jnp.bfloat16
    expected = compiled(dtype=jnp.float32)(*args, **options)
    assert expected.dtype == jnp.float32
    for b in range(B):
        error = relative_error(out[b][MASK[b]], expected[b][MASK[b]])
        assert error <= TOLERANCE["bfloat16"]


CROSS = {"other": 53}
REFUSED = {
    "bias": ({}, {"bias": np.ones((1, 1, L, L))}, r"bias.*\(1, 1, 67, 67\)"),
    "causal": ({}, {"is_causal": True}, r"is_causal.*\(3, 67, 2, 5\)"),
    "mask over queries": (
        {},
        {"mask": np.ones((B, 1, L, L), bool)},
        r"\(3, 1, 67, 67\)",
    ),
    "mask over heads": ({}, {"mask": np.ones((B, N, 1, L), bool)}, r"\(3, 2, 1, 67\)"),
    "mask of numbers": ({}, {"mask": np.ones((B, 1, 1, L), np.float32)}, "float32"),
    "mask length": ({}, {"mask": np.ones((B, 1, 1, 61), bool)}, r"\(3, 1, 1, 61\)"),
    "mask of queries": (CROSS, {"mask": np.ones((B, 1, 1, L), bool)}, r"1, 1, 67\)"),
    "dropout": ({}, {"dropout_rate": 0.3, "deterministic": False}, "dropout_rate=0.3"),
    "sow": ({}, {"module": object()}, "weights"),
    "no landmarks": ({}, {"num_landmarks": 0}, "num_landmarks.*got 0"),
    "iterations": ({}, {"num_pinv_iters": -1}, "num_pinv_iters.*-1"),
    "even kernel": ({}, {"conv_kernel": np.ones((4, N))}, "odd.*got 4"),
    "conv across": (CROSS, {"conv_kernel": KERNEL}, r"T = S.*67.*53"),
    "conv heads": ({}, {"conv_kernel": np.ones((5, 3))}, r"N = 2.*\(5, 3\)"),
    "segments": ({}, {"segments": "even"}, "'valid', 'padded'.*'even'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(case):
    shape, options, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        nystrom_attention(*inputs(**shape), **options)
