"""What the paper and its baseline prove, on matrices that softmax makes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.nystrom import iterative_pinv, nystrom
from tests.tolerance import TOLERANCE

RNG = np.random.default_rng(0)
DEFICIENT = np.repeat(np.float64(softmax_matrix(*RNG.normal(size=(2, 8, 4)))), 2, 0)
DEFICIENT = np.repeat(DEFICIENT, 2, 1) / 2  # [16, 16] of rank 8; rows sum to 1


def test_iterative_pinv_cubes_the_residual_by_lemma_1():
    assert np.linalg.matrix_rank(DEFICIENT) == 8
    inverse = np.linalg.pinv(DEFICIENT)
    with jax.enable_x64(True):
        iterates = [np.asarray(iterative_pinv(DEFICIENT, j)) for j in range(31)]
    residuals = [np.linalg.norm(DEFICIENT @ (inverse - z), 2) for z in iterates]
    assert residuals[0] < 1
    for before, after in itertools.pairwise(residuals):
        assert after <= before**3 + 1e-9
    assert residuals[-1] < 1e-9


def test_nystrom_with_all_tokens_as_landmarks_is_exact_by_lemma_2():
    """Through the iteration: the more of them, the nearer to softmax attention."""
    with jax.enable_x64(True):
        query, key = np.random.default_rng(1).normal(size=(2, 16, 5))
        exact = softmax_matrix(query, key)
        _, a, _ = nystrom_kernels(query, key, num_landmarks=16)
        np.testing.assert_allclose(a, exact, rtol=1e-12)

        def error(num_iters):
            approximation = a @ iterative_pinv(a, num_iters) @ a
            return np.linalg.norm(approximation - exact) / np.linalg.norm(exact)

        errors = [error(n) for n in (0, 6, 12, 20, 30)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.3 > 0.1 > errors[1]
    assert errors[-1] < TOLERANCE["float64"]


def norm_inf(matrix):
    """The largest row sum of absolute values."""
    return float(jnp.abs(matrix).sum(1).max())


def test_nystrom_error_is_within_proposition_1():
    with jax.enable_x64(True):
        for scale in (0.1, 1, 4):
            query, key, value = scale * RNG.normal(size=(3, 24, 5))
            _, a, _ = nystrom_kernels(query, key, num_landmarks=6)
            inverse = jnp.linalg.pinv(a)
            z = iterative_pinv(a)
            exact = softmax_matrix(query, key) @ value
            out = nystrom(query, key, value, num_landmarks=6)
            factor = 1 + norm_inf(inverse) + norm_inf(inverse - z)
            assert 0 < norm_inf(exact - out) <= factor * norm_inf(value)
