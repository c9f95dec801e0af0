"""The approximated matrix: its factors and its rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import factors
from nystromformer.landmarks import random_positions
from tests import paper
from tests.attention.cases import normal, one_head
from tests.jaxpr import quadratic_shapes
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 67, 5, 7
TOKEN = np.arange(S)
MASKS = {
    "all": TOKEN >= 0,
    "padding": TOKEN < 41,
    "holes": TOKEN % 3 != 1,
    "few": TOKEN % 17 == 3,  # fewer than M
}


def attend(query, key, value, mask, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    return one_head("nystrom", query, key, value, mask, **options)


def matrix_and_rows(query, key, mask, *, rows, **options):
    """F Z B, and rows of it, in float64; excluded keys are NaN."""
    with jax.enable_x64(True):
        key = jnp.where(mask[:, None], key, jnp.nan)
        mask = None if mask.all() else jnp.asarray(mask)

        @jax.jit
        def compute(query, key, mask):
            f, z, b = factors.nystrom_factors(query, key, mask, **options)
            chosen = factors.nystrom_rows(query, key, rows, mask, **options)
            return f, z, b, chosen

        f, z, b, chosen = map(np.asarray, compute(jnp.asarray(query), key, mask))
    return f @ z @ b, chosen


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


@pytest.mark.parametrize("num_landmarks", [M, 71])
def test_factors_and_rows_are_those_of_cross_attention_with_t_equal_to_s(num_landmarks):
    mask = MASKS["padding"]
    query, key, value = (normal(i, S, H) for i in range(3))
    options = {"num_landmarks": num_landmarks, "cross_attention": True}
    expected = attend(query, key, value, mask, **options)
    matrix, rows = matrix_and_rows(query, key, mask, rows=[S - 1, 0], **options)
    assert relative_error(matrix @ value, expected) <= TOLERANCE["float64"]
    assert relative_error(rows, matrix[[S - 1, 0]]) <= TOLERANCE["float64"]


def test_nystrom_rows_form_no_matrix():
    length = 101
    query, key = (jnp.asarray(normal(i, length, H), "float32") for i in range(2))

    def two_rows(query, key):
        return factors.nystrom_rows(query, key, [0, 3], num_landmarks=M)

    assert not quadratic_shapes(length, length, two_rows, query, key)
    assert quadratic_shapes(length, length, factors.softmax_matrix, query, key)


def test_nystrom_rows_of_a_position_that_does_not_exist_are_nan():
    query, key = (jnp.asarray(normal(i, 11, H), "float32") for i in range(2))
    row_11 = functools.partial(factors.nystrom_rows, rows=[11], num_landmarks=M)
    assert np.isnan(jax.jit(row_11)(query, key)).all()


def test_standard_nystrom_samples_rows_and_columns_of_softmax():
    query, key = (normal(i, S, H) for i in range(2))
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask).tolist()
    with jax.enable_x64(True):
        tokens = random_positions(jnp.asarray(mask), M, 5).tolist()
        arrays = [jnp.where(mask[:, None], x, jnp.nan) for x in (query, key)]
        sample = functools.partial(factors.standard_nystrom, *arrays, jnp.asarray(mask))
        static_names = ("num_landmarks", "pinv", "num_pinv_iters")
        sampled = jax.jit(sample, static_argnames=static_names)
        few = np.asarray(sampled(num_landmarks=M, seed=5))
        other_seed = np.asarray(sampled(num_landmarks=M, seed=6))
        all_tokens = np.asarray(sampled(num_landmarks=S))
        iterated = np.asarray(
            sampled(num_landmarks=M, seed=5, pinv="iterative", num_pinv_iters=4)
        )

    valid_square = np.ix_(valid, valid)
    expected = paper.standard_nystrom(query, key, valid, tokens)
    assert relative_error(few[valid_square], expected) <= 1e-9  # cond of S[J, J]
    exact = paper.softmax(query[valid] @ key[valid].T / np.sqrt(H))
    assert relative_error(all_tokens[valid_square], exact) <= 1e-6
    assert not few[valid][:, ~mask].any()
    regularised = paper.standard_nystrom(query, key, valid, tokens, num_iters=4)
    error = relative_error(iterated[valid_square], regularised)
    assert error <= TOLERANCE["float64"]
    assert relative_error(regularised, expected) > 0.1
    # It is neither exact, nor the same tokens for each seed, nor the paper's method.
    assert relative_error(few[valid_square], exact) > 0.1
    assert relative_error(other_seed[valid_square], expected) > 0.1
    f, a, b = paper.kernels_of(query[tokens], key[tokens], query[valid], key[valid])
    assert relative_error(f @ np.linalg.pinv(a) @ b, expected) > 0.1
