"""The approximated matrix: its factors and its rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import factors
from nystromformer.landmarks import random_positions
from nystromformer.nystrom import nystrom
from tests import paper
from tests.attention.cases import normal, one_head
from tests.jaxpr import quadratic_shapes
from tests.tolerance import TOLERANCE, relative_error

# Tokens, the size of a head, and landmarks.
S = 67
H = 5
M = 7
TOKEN = np.arange(S)
MASKS = {
    "all": TOKEN >= 0,
    "padding": TOKEN < 41,
    "holes": TOKEN % 3 != 1,
    "few": TOKEN % 17 == 3,  # They are fewer than M.
}


def attend(query, key, value, mask, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    return one_head("nystrom", query, key, value, mask, **options)


@functools.cache
def compiled_matrix_and_rows(**options):
    @jax.jit
    def compute(query, key, rows, mask, **more):
        f, z, b = factors.nystrom_factors(query, key, mask, **options, **more)
        rows = factors.nystrom_rows(query, key, rows, mask, **options, **more)
        return f @ z @ b, rows

    return compute


@functools.cache
def compiled_nystrom(**options):
    return jax.jit(functools.partial(nystrom, **options))


def matrix_and_rows(query, key, mask, *, rows, **options):
    """F Z B, and rows of it, in float64; excluded keys are NaN."""
    key = np.where(mask[:, None], key, np.nan)
    if mask.all():
        mask = None
    with jax.enable_x64(True):
        compute = compiled_matrix_and_rows(**options)
        matrix, matrix_rows = compute(query, key, np.array(rows), mask)
        return np.asarray(matrix), np.asarray(matrix_rows)


RANDOM = {"landmarks": "random", "landmark_seed": 3, "num_pinv_iters": 2}
KMEANS = {"landmarks": "kmeans", "pinv": "exact"}
PUBLISHED = {"landmark_padding": "count", "pinv": "identity"}


@pytest.mark.parametrize(
    ("options", "num_queries", "num_landmarks", "mask"),
    [
        ({}, S, M, "holes"),
        ({}, S, M, "few"),
        ({}, S, M, "all"),
        ({}, S, 71, "few"),
        ({}, 13, M, "few"),
        ({}, 5, M, "few"),
        ({}, M, M, "holes"),
        (RANDOM, S, M, "holes"),
        (RANDOM, S, M, "few"),
        (KMEANS, S, M, "holes"),
        (KMEANS, S, M, "few"),
        (PUBLISHED, S, M, "holes"),
        (PUBLISHED, S, M, "few"),
    ],
    ids=str,
)
def test_factors_and_rows_are_of_the_matrix_that_nystrom_applies(
    options, num_queries, num_landmarks, mask
):
    """In self-attention, and in cross-attention of fewer queries than keys."""
    mask = MASKS[mask]
    options = {"num_landmarks": num_landmarks, **options}
    query = normal(0, num_queries, H)
    key = normal(1, S, H)
    value = normal(2, S, H)
    expected = attend(query, key, value, mask, **options)
    matrix, rows = matrix_and_rows(query, key, mask, rows=[4, 0], **options)

    valid_queries = mask if num_queries == S else slice(None)
    out = (matrix @ value)[valid_queries]
    assert relative_error(out, expected[valid_queries]) <= TOLERANCE["float64"]
    assert not matrix[:, ~mask].any()
    assert relative_error(rows, matrix[[4, 0]]) <= TOLERANCE["float64"]


def test_factors_and_rows_promote_no_dtype_unasked():
    heads = np.ones((S, H), np.float32)
    inputs = (heads, heads, np.array([4, 0]), MASKS["few"])
    with jax.numpy_dtype_promotion("strict"):
        # This raises where a dtype is promoted.
        jax.eval_shape(compiled_matrix_and_rows(num_landmarks=M), *inputs)


@pytest.mark.parametrize("num_landmarks", [M, 71])
@pytest.mark.parametrize("query_mask", ["all", "holes", "few"])
@pytest.mark.parametrize("keys", ["padding", "few"])
def test_factors_and_rows_are_of_cross_attention_where_lengths_are_equal(
    num_landmarks, keys, query_mask
):
    """A query that does not count may be NaN, and its row is."""
    mask = MASKS[keys]
    counts = MASKS[query_mask]
    query, key, value = normal(0, 3, S, H)
    with jax.enable_x64(True):
        zeroed = [np.where(mask[:, None], x, 0) for x in (key, value)]
        attend = compiled_nystrom(num_landmarks=num_landmarks)
        expected = attend(query, *zeroed, mask, query_mask=counts)

        query = np.where(counts[:, None], query, np.nan)
        positions = np.array([54, 3])
        if query_mask == "all":
            compute = compiled_matrix_and_rows(
                num_landmarks=num_landmarks, query_mask=True
            )
            matrix, rows = compute(query, key, positions, mask)
        else:
            compute = compiled_matrix_and_rows(num_landmarks=num_landmarks)
            matrix, rows = compute(query, key, positions, mask, query_mask=counts)
        matrix = np.asarray(matrix)
    error = relative_error((matrix @ value)[counts], np.asarray(expected)[counts])
    assert error <= TOLERANCE["float64"]
    assert relative_error(rows, matrix[[54, 3]]) <= TOLERANCE["float64"]


@pytest.mark.parametrize("num_keys", [3, S])
def test_factors_of_few_queries_have_exact_rows_of_all_of_them(num_keys):
    """Also of one that does not count; if it is NaN, it has no part in the others."""
    counts = np.array([True, False, True])
    query = np.float32(normal(0, 3, H))
    key = np.float32(normal(1, num_keys, H))
    expected = factors.softmax_matrix(query, key)
    options = {"query_mask": counts, "num_landmarks": M}
    f, z, b = factors.nystrom_factors(query, key, **options)
    assert relative_error(f @ z @ b, expected) <= TOLERANCE["float32"]

    query = np.where(counts[:, None], query, np.nan)
    f, z, b = factors.nystrom_factors(query, key, **options)
    assert relative_error((f @ z @ b)[counts], expected[counts]) <= TOLERANCE["float32"]


def test_nystrom_rows_form_no_matrix():
    length = 101
    query, key = jnp.float32(normal(0, 2, length, H))

    def two_rows(query, key):
        return factors.nystrom_rows(query, key, [0, 3], num_landmarks=M)

    assert not quadratic_shapes(length, length, two_rows, query, key)
    assert quadratic_shapes(length, length, factors.softmax_matrix, query, key)


def test_nystrom_rows_of_a_position_that_does_not_exist_are_nan():
    query, key = jnp.float32(normal(0, 2, 11, H))
    row_11 = functools.partial(factors.nystrom_rows, rows=[11], num_landmarks=M)
    assert np.isnan(jax.jit(row_11)(query, key)).all()


compiled_standard_nystrom = jax.jit(
    factors.standard_nystrom,
    static_argnames=("num_landmarks", "pinv", "num_pinv_iters"),
)


def random_token_positions(mask, seed):
    """The tokens that standard_nystrom draws in float64."""
    with jax.enable_x64(True):
        return random_positions(jnp.asarray(mask), M, seed).tolist()


QUERY = normal(0, S, H)
KEY = normal(1, S, H)


def standard_nystrom(mask, **options):
    """The square [n, n] of the valid tokens, in float64; excluded ones are NaN."""
    valid = np.flatnonzero(mask)
    query = np.where(mask[:, None], QUERY, np.nan)
    key = np.where(mask[:, None], KEY, np.nan)
    with jax.enable_x64(True):
        matrix = compiled_standard_nystrom(query, key, mask, **options)
    assert not np.asarray(matrix)[valid][:, ~mask].any()
    return np.asarray(matrix)[np.ix_(valid, valid)]


def test_standard_nystrom_samples_rows_and_columns_of_softmax():
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask).tolist()
    tokens = random_token_positions(mask, seed=5)
    expected = paper.standard_nystrom(QUERY, KEY, valid, tokens)
    actual = standard_nystrom(mask, num_landmarks=M, seed=5)
    # The condition number of S[J, J] costs two digits.
    assert relative_error(actual, expected) <= 1e-9

    # Another seed draws other tokens.
    by_another_seed = standard_nystrom(mask, num_landmarks=M, seed=6)
    assert relative_error(by_another_seed, expected) > 0.1
    # This is not the paper's method with the same tokens.
    f, a, b = paper.kernels_of(QUERY[tokens], KEY[tokens], QUERY[valid], KEY[valid])
    assert relative_error(f @ np.linalg.pinv(a) @ b, expected) > 0.1


def test_standard_nystrom_of_all_tokens_is_exact():
    mask = MASKS["holes"]
    exact = paper.softmax(QUERY[mask] @ KEY[mask].T / np.sqrt(H))
    actual = standard_nystrom(mask, num_landmarks=S)
    assert relative_error(actual, exact) <= 1e-6
    few = standard_nystrom(mask, num_landmarks=M, seed=5)
    assert relative_error(few, exact) > 0.1


def test_standard_nystrom_may_have_the_iterated_inverse():
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask).tolist()
    tokens = random_token_positions(mask, seed=5)
    expected = paper.standard_nystrom(QUERY, KEY, valid, tokens, num_iters=4)
    actual = standard_nystrom(
        mask, num_landmarks=M, seed=5, pinv="iterative", num_pinv_iters=4
    )
    assert relative_error(actual, expected) <= TOLERANCE["float64"]
    exact_inverse = paper.standard_nystrom(QUERY, KEY, valid, tokens)
    assert relative_error(expected, exact_inverse) > 0.1
