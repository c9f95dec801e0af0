"""The pseudo-inverse's kernel, interpreted on a CPU, against XLA's way and float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import nystrom_attention, pinv_kernel
from nystromformer.pinv import _razavi_step
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

NUM_ITERS = 6


def softmax_matrices(size, num_matrices=2, missing=()):
    """A [num_matrices, M, M] in float32; missing landmarks are the identity's."""
    rng = np.random.default_rng(size)
    a = np.stack(
        [paper.softmax(2 * rng.normal(size=(size, size))) for _ in range(num_matrices)]
    )
    exists = ~np.isin(np.arange(size), missing)
    a *= exists[:, None] & exists
    a += np.diag(1.0 - exists)
    return jnp.asarray(a, jnp.float32)


def initial(a):
    """Z₀ of each matrix."""
    norms = jnp.abs(a).sum(-2).max(-1) * jnp.abs(a).sum(-1).max(-1)
    return a.mT / norms[:, None, None]


iterate_by_kernel = functools.partial(
    pinv_kernel.iterate, step=_razavi_step, num_iters=NUM_ITERS, interpret=True
)


def iterate_by_xla(a, z):
    for _ in range(NUM_ITERS):
        z = _razavi_step(a, z, "highest")
    return z


@pytest.mark.parametrize("size", pinv_kernel.SIZES)
@pytest.mark.parametrize("missing", [(), (3, 9, 15)], ids=["all", "holes"])
def test_is_the_papers_inverse(size, missing):
    a = softmax_matrices(size, missing=missing)
    expected = [paper.pinv(np.asarray(one, float), NUM_ITERS) for one in a]
    actual = iterate_by_kernel(a, initial(a))
    assert relative_error(actual, np.stack(expected)) < TOLERANCE["float32"]


@pytest.mark.parametrize("missing", [(), (3, 9, 15)], ids=["all", "holes"])
def test_gradient_is_that_of_the_iterations(missing):
    a = softmax_matrices(16, missing=missing)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=a.shape), jnp.float32)
    _, pull_back = jax.vjp(iterate_by_kernel, a, initial(a))
    with jax.enable_x64(True):
        exact = [jnp.asarray(x, jnp.float64) for x in (a, initial(a), weights)]
        _, pull_back_exactly = jax.vjp(iterate_by_xla, *exact[:2])
        expected = pull_back_exactly(exact[2])
    for gradient, exact_gradient in zip(pull_back(weights), expected, strict=True):
        assert relative_error(gradient, exact_gradient) < TOLERANCE["float32"]


def test_second_derivative_is_that_of_the_iterations():
    a = softmax_matrices(16, num_matrices=1)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=a.shape), jnp.float32)

    def slope(iterate, a):
        gradient = jax.grad(lambda a: jnp.vdot(iterate(a, initial(a)), weights))(a)
        return jnp.vdot(gradient, weights)

    actual = jax.grad(functools.partial(slope, iterate_by_kernel))(a)
    expected = jax.grad(functools.partial(slope, iterate_by_xla))(a)
    assert relative_error(actual, expected) < TOLERANCE["float32"]


def kernels_called(platform, num_landmarks=16, dtype=jnp.float32, pinv_kernel=True):
    """How many kernels of Triton attention and its gradient call on a platform."""
    x = jax.ShapeDtypeStruct((2, 64, 2, 8), dtype)

    def total(query, key, value):
        out = nystrom_attention(
            query,
            key,
            value,
            num_landmarks=num_landmarks,
            pinv_kernel=pinv_kernel,
        )
        return out.astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    program = gradient.trace(x, x, x).lower(lowering_platforms=(platform,)).as_text()
    return program.count("@__gpu$xla.gpu.triton")


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX had found one NVIDIA GPU."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_three_kernels_on_a_gpu(a_gpu, dtype):
    assert kernels_called("cuda", dtype=dtype) == 3


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_none_elsewhere(a_gpu, platform):
    assert kernels_called(platform) == 0


def test_sizes_that_no_kernel_takes_go_to_xla(a_gpu):
    assert kernels_called("cuda", num_landmarks=24) == 0


def test_none_unless_asked(a_gpu):
    assert kernels_called("cuda", pinv_kernel=False) == 0


def test_none_with_several_devices(a_gpu, monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert kernels_called("cuda") == 0
