"""What the paper proves, on matrices that softmax makes.

Lemma 1 is the iteration, Lemma 2 says that all tokens as landmarks are exact, and
Proposition 1 bounds the error. Linformer's theorems are in linformer_theory_test.py.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.nystrom import iterative_pinv, nystrom
from tests.tolerance import TOLERANCE


def make_deficient_matrix():
    """A matrix [16, 16] of rank 8, whose rows sum to 1."""
    query, key = np.random.default_rng(0).normal(size=(2, 8, 4))
    matrix = np.float64(softmax_matrix(query, key))
    return np.kron(matrix, np.ones((2, 2))) / 2


DEFICIENT = make_deficient_matrix()


def iterates_of(matrix, counts):
    """The iterates of the pseudo-inverse after these counts of steps, in float64."""

    @jax.jit
    def compute(matrix):
        return [iterative_pinv(matrix, count) for count in counts]

    with jax.enable_x64(True):
        return [np.asarray(iterate) for iterate in compute(matrix)]


def test_iterative_pinv_cubes_the_residual_by_lemma_1():
    assert np.linalg.matrix_rank(DEFICIENT) == 8
    inverse = np.linalg.pinv(DEFICIENT)
    iterates = iterates_of(DEFICIENT, range(14))
    residuals = [np.linalg.norm(DEFICIENT @ (inverse - z), 2) for z in iterates]
    assert residuals[0] < 1
    for before, after in itertools.pairwise(residuals):
        assert after <= before**3 + 1e-9
    assert residuals[-1] < 1e-9


def test_nystrom_with_all_tokens_as_landmarks_is_exact_by_lemma_2():
    """Through the iteration: the more of them, the nearer to softmax attention."""
    query, key = np.random.default_rng(1).normal(size=(2, 16, 5))
    with jax.enable_x64(True):
        exact = np.asarray(softmax_matrix(query, key))
        _, a, _ = nystrom_kernels(query, key, num_landmarks=16)
        a = np.asarray(a)
    np.testing.assert_allclose(a, exact, rtol=1e-12)

    errors = []
    for iterate in iterates_of(a, (0, 6, 10, 12, 30)):
        difference = a @ iterate @ a - exact
        errors.append(np.linalg.norm(difference) / np.linalg.norm(exact))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.3 > 0.1 > errors[1]
    assert errors[-1] < TOLERANCE["float64"]


def norm_inf(matrix):
    """The largest row sum of absolute values."""
    return jnp.abs(matrix).sum(1).max()


@jax.jit
def error_and_bound(query, key, value):
    """‖SV − ŜV‖∞ of six landmarks, and what Proposition 1 says that it is at most."""
    exact = softmax_matrix(query, key) @ value
    out = nystrom(query, key, value, num_landmarks=6)
    error = norm_inf(exact - out)

    _, a, _ = nystrom_kernels(query, key, num_landmarks=6)
    inverse = jnp.linalg.pinv(a)
    factor = 1 + norm_inf(inverse) + norm_inf(inverse - iterative_pinv(a))
    return error, factor * norm_inf(value)


def test_nystrom_error_is_within_proposition_1():
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        for scale in (0.1, 1, 4):
            query, key, value = scale * rng.normal(size=(3, 24, 5))
            error, bound = error_and_bound(query, key, value)
            assert 0 < error <= bound
