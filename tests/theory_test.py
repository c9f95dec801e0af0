"""What the paper and Linformer prove, on matrices that softmax makes.

Of the paper: Lemma 1 (the iteration), Lemma 2 (all tokens as landmarks) and
Proposition 1 (the bound of the error). Of Linformer: the random projection that proves
its Theorem 1, and the number of its rows, which depends on log n there and not on n at
all in Theorem 2. What Theorem 2 says of scores that are projected is not here.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.nystrom import iterative_pinv, nystrom
from tests.tolerance import TOLERANCE

RNG = np.random.default_rng(0)


def make_deficient_matrix():
    """A matrix [16, 16] of rank 8, whose rows sum to 1."""
    query, key = RNG.normal(size=(2, 8, 4))
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
    with jax.enable_x64(True):
        for scale in (0.1, 1, 4):
            query, key, value = scale * RNG.normal(size=(3, 24, 5))
            error, bound = error_and_bound(query, key, value)
            assert 0 < error <= bound


EPSILON = 0.6
VALUE_DIM = 4  # d


def softmax_rows(rng, num_keys):
    """64 rows of a softmax matrix, and the values [n, d] of its keys."""
    key = rng.normal(size=(num_keys, 8))
    query = rng.normal(size=(64, 8))
    value = rng.normal(size=(num_keys, VALUE_DIM))
    return np.float64(softmax_matrix(query, key)), value


def projection_errors(rng, rows, value, num_rows):
    """|p RᵀR w − p w| / (‖p‖ ‖w‖) of each row p of P and each column w of the values.

    R has k rows from N(0, 1/k): P RᵀR, of rank k, is the matrix of Theorem 1's proof.
    """
    projection = rng.normal(size=(num_rows, len(value))) / num_rows**0.5
    differences = (rows @ projection.T) @ (projection @ value) - rows @ value
    row_norms = np.linalg.norm(rows, axis=1)
    column_norms = np.linalg.norm(value, axis=0)
    return np.abs(differences) / np.outer(row_norms, column_norms)


def rows_of_theorem_1(num_keys):
    """k = 5 ln(n) / (ε² − ε³)."""
    return int(np.ceil(5 * np.log(num_keys) / (EPSILON**2 - EPSILON**3)))


@pytest.mark.parametrize("num_keys", [256, 1024, 4096])
def test_random_projection_keeps_p_v_within_epsilon_by_linformers_theorem_1(num_keys):
    """With a fortieth of the rows every draw fails."""
    rng = np.random.default_rng(2)
    num_rows = rows_of_theorem_1(num_keys)
    assert num_rows < num_keys
    for _ in range(5):
        rows, value = softmax_rows(rng, num_keys)
        assert projection_errors(rng, rows, value, num_rows).max() <= EPSILON
        assert projection_errors(rng, rows, value, num_rows // 40).max() > EPSILON


def share_of_large_errors(rng, rows, value, num_rows):
    """How many of the errors of 20 projections are over ε."""
    errors = [projection_errors(rng, rows, value, num_rows) for _ in range(20)]
    return np.mean(np.array(errors) > EPSILON)


def test_rows_that_linformer_needs_do_not_grow_with_the_length_by_theorem_2():
    """k = 9 d ln(d) / ε² has no n. With a 30th of it every length fails alike."""
    rng = np.random.default_rng(3)
    num_rows = int(9 * VALUE_DIM * np.log(VALUE_DIM) / EPSILON**2)
    for num_keys in (256, 1024, 4096):
        rows, value = softmax_rows(rng, num_keys)
        assert share_of_large_errors(rng, rows, value, num_rows) == 0
        assert 0.1 < share_of_large_errors(rng, rows, value, num_rows // 30) < 0.3


def test_error_of_a_random_projection_falls_with_the_root_of_its_rows():
    rng = np.random.default_rng(4)
    rows, value = softmax_rows(rng, 256)

    def mean_error(num_rows):
        errors = [projection_errors(rng, rows, value, num_rows) for _ in range(20)]
        return np.mean(errors)

    error_of_16 = mean_error(16)
    error_of_64 = mean_error(64)
    error_of_256 = mean_error(256)
    assert error_of_64 == pytest.approx(error_of_16 / 2, rel=0.2)
    assert error_of_256 == pytest.approx(error_of_64 / 2, rel=0.2)


def test_theorem_1_is_no_help_to_a_head_that_looks_at_one_token():
    """A negative twin: the bound is of ‖p‖ ‖w‖, and here ‖p w‖ is far smaller.

    The theorem is printed with ‖P w‖. With P = I its proof's matrix misses P w by
    √(n / k) times its norm, so that by this measure k has to grow with n.
    """
    rng = np.random.default_rng(5)
    errors = []
    for num_keys in (256, 1024, 4096):
        num_rows = rows_of_theorem_1(num_keys)
        vector = rng.normal(size=num_keys)
        projection = rng.normal(size=(num_rows, num_keys)) / num_rows**0.5
        difference = projection.T @ (projection @ vector) - vector
        error = np.linalg.norm(difference) / np.linalg.norm(vector)
        assert error == pytest.approx((num_keys / num_rows) ** 0.5, rel=0.15)
        errors.append(error)
    assert EPSILON < errors[0] < errors[1] < errors[2]
