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
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": (TOKEN % 3 != 1)}


def attend(query, key, value, mask=MASKS["all"], num_landmarks=M, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    options |= {"num_landmarks": num_landmarks}
    return one_head("nystrom", query, key, value, mask, **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"landmarks": "random", "landmark_seed": 3, "num_pinv_iters": 2},
        {"landmarks": "kmeans", "pinv": "exact"},
        {"landmark_padding": "count", "pinv": "identity"},
    ],
    ids=str,
)
def test_factors_and_rows_are_of_the_matrix_that_nystrom_applies(options):
    """In self- and cross-attention, few landmarks and more than tokens, all masks."""
    few, holes = TOKEN % 17 == 3, MASKS["holes"]
    cases = [(S, M, holes), (S, M, few)]
    if not options:
        cases += [(S, M, MASKS["all"]), (S, 71, few), (13, M, few), (5, M, few)]
    for length, count, mask in cases:
        query, key, value = (normal(i, n, H) for i, n in enumerate((length, S, S)))
        expected = attend(query, key, value, mask, count, **options)
        with jax.enable_x64(True):
            noisy = jnp.where(mask[:, None], key, jnp.nan)
            x = jnp.asarray(query), noisy, None if mask.all() else jnp.asarray(mask)
            given = {"num_landmarks": count, **options}
            fzb = jax.jit(functools.partial(factors.nystrom_factors, **given))(*x)
            two = functools.partial(factors.nystrom_rows, rows=[4, 0], **given)
            rows = jax.jit(two)(*x[:2], mask=x[2])
        f, z, b = map(np.asarray, fzb)
        matrix, mine = f @ z @ b, mask if length == S else slice(None)
        found = matrix @ (value * mask[:, None])
        assert relative_error(found[mine], expected[mine]) <= TOLERANCE["float64"]
        assert not matrix[:, ~mask].any()
        assert relative_error(rows, matrix[[4, 0]]) <= TOLERANCE["float64"]


@pytest.mark.parametrize("count", [M, 71])
def test_factors_and_rows_are_those_of_cross_attention_with_t_equal_to_s(count):
    mask = MASKS["padding"]
    query, key, value = (normal(i, S, H) for i in range(3))
    given = {"num_landmarks": count, "cross_attention": True}
    expected = attend(query, key, value, mask, count, cross_attention=True)
    with jax.enable_x64(True):
        x = [jnp.asarray(y) for y in (query, key)]
        f, z, b = factors.nystrom_factors(*x, mask, **given)
        rows = factors.nystrom_rows(*x, [S - 1, 0], mask, **given)
    matrix = np.asarray(f) @ np.asarray(z) @ np.asarray(b)
    assert relative_error(matrix @ value, expected) <= TOLERANCE["float64"]
    assert relative_error(rows, matrix[[S - 1, 0]]) <= TOLERANCE["float64"]


def test_nystrom_rows_form_no_matrix():
    long = 101
    x = [jnp.asarray(normal(i, long, H), "float32") for i in range(2)]
    row = functools.partial(factors.nystrom_rows, num_landmarks=M)
    assert not quadratic_shapes(long, long, lambda *x: row(*x, [0, 3]), *x)
    assert quadratic_shapes(long, long, factors.softmax_matrix, *x)
    assert np.isnan(row(*x, [long])).all()  # no such row


def test_standard_nystrom_samples_rows_and_columns_of_softmax():
    query, key = (normal(i, S, H) for i in range(2))
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask).tolist()
    with jax.enable_x64(True):
        tokens = random_positions(jnp.asarray(mask), M, 5).tolist()
        arrays = [jnp.where(mask[:, None], x, jnp.nan) for x in (query, key)]
        sampled = functools.partial(
            factors.standard_nystrom, *arrays, jnp.asarray(mask)
        )
        few = np.asarray(sampled(num_landmarks=M, seed=5))
        other_seed = np.asarray(sampled(num_landmarks=M, seed=6))
        all_tokens = np.asarray(sampled(num_landmarks=S))

    valid_square = np.ix_(valid, valid)
    expected = paper.standard_nystrom(query, key, valid, tokens)
    assert relative_error(few[valid_square], expected) <= 1e-9  # cond of S[J, J]
    exact = paper.softmax(query[valid] @ key[valid].T / np.sqrt(H))
    assert relative_error(all_tokens[valid_square], exact) <= 1e-6
    assert not few[valid][:, ~mask].any()
    # It is neither exact, nor the same tokens for each seed, nor the paper's method.
    assert relative_error(few[valid_square], exact) > 0.1
    assert relative_error(other_seed[valid_square], expected) > 0.1
    f, a, b = paper.kernels_of(query[tokens], key[tokens], query[valid], key[valid])
    assert relative_error(f @ np.linalg.pinv(a) @ b, expected) > 0.1
