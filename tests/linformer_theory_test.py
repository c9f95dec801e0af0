"""Linformer's theorems in numpy: they explain its number of rows.

Theorem 1 is proved by a random projection, whose number of rows depends on log n. In
Theorem 2 it does not depend on n. What Theorem 2 says of scores that are projected is
not here. All are slow tests, since no code of the project but the softmax is in them.
"""

import numpy as np
import pytest

from nystromformer.factors import softmax_matrix

pytestmark = pytest.mark.slow

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
    """A fortieth of the rows is too few: every draw fails."""
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
