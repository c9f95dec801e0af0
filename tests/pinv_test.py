"""The exact inverse; nystrom_test.py has the iteration."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.pinv import exact_pinv
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

# Tokens, the size of a head, and landmarks.
S = 67
H = 5
M = 7


def test_exact_pinv_has_the_gradient_of_jaxs_own():
    full = normal(0, M, M)
    low_rank = normal(1, M, 3) @ normal(2, 3, M)
    weights = normal(3, M, M)
    with jax.enable_x64(True):
        for matrix in (full, low_rank):
            batch = np.stack([matrix, 2 * matrix.T])
            gradients = [
                jax.grad(lambda a, pinv=pinv: (weights[None] * pinv(a)).sum())(batch)
                for pinv in (exact_pinv, jax.vmap(jnp.linalg.pinv))
            ]
            assert relative_error(*gradients) <= TOLERANCE["float64"]


def test_exact_pinv_computes_no_batch_on_a_cpu():
    """LAPACK's batches in a program may wait for each other for ever."""
    attention = make("nystrom", num_heads=2, num_landmarks=M, pinv="exact")

    @jax.checkpoint
    def attend(query):
        return attention(query, query, query).sum()

    ensemble = jnp.float32(normal(0, 3, 2, S, 2, H))
    gradient = jax.vmap(jax.value_and_grad(attend))
    assert shapes_decomposed(gradient, ensemble) == {(M, M)}
    batch = jnp.ones((2, 3, M, M))
    assert shapes_decomposed(exact_pinv, batch) == {(M, M)}
    assert shapes_decomposed(jnp.linalg.pinv, batch) == {(2, 3, M, M)}


def shapes_decomposed(function, *inputs):
    """The shapes of the arrays that LAPACK decomposes by singular values on a CPU."""
    program = jax.jit(function).lower(*inputs).as_text()
    shapes = re.findall(r"@lapack_sgesdd_ffi.* : \(tensor<([\dx]+)xf32>\)", program)
    return {tuple(int(size) for size in shape.split("x")) for shape in shapes}
