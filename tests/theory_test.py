"""What the paper proves, on matrices that softmax makes.

Lemma 1 is the iteration, and Lemma 2 says that all tokens as landmarks are exact. The
bound of Proposition 1 is in experiments/approximation/measurements_test.py, Linformer's
theorems are in linformer_theory_test.py.
"""

import itertools

import jax
import numpy as np

from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.pinv import iterative_pinv
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
