"""The errors by their causes, against float64 numpy."""

import jax
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.experiments.approximation import causes, columns
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.landmarks import random_positions
from tests import paper

# The length of a sequence, the heads and the dimension of a head.
L = 13
N = 2
H = 5
LENGTHS = (13, 10, 4)


def make_layer(seed):
    """Random queries, keys and values. Padding is NaN, since nothing may look at it."""
    rng = np.random.default_rng(seed)
    query, key, value = 2 * rng.normal(size=(3, len(LENGTHS), L, N, H))
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    for array in (query, key, value):
        array[~mask] = np.nan
    return AttentionInputs(query, key, value, mask=mask)


@pytest.fixture(scope="module")
def layers():
    return [make_layer(0), make_layer(1)]


@pytest.fixture(scope="module")
def errors(layers):
    with jax.enable_x64(True):
        return causes.measure_causes(
            layers, counts=(3, 10), num_pinv_iters=2, num_draws=2
        )


def head_of(layers, row):
    """Query, key and value [n, H] of the valid tokens of a row's head."""
    layer = layers[row.layer]
    place = (row.example, slice(LENGTHS[row.example]), row.head)
    return layer.query[place], layer.key[place], layer.value[place]


def softmax_matrix(query, key):
    return paper.softmax(query @ key.T / np.sqrt(H))


def relative_error(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


def test_of_long_matrices_the_iterated_vectors_give_nearly_the_nearest_matrix(
    monkeypatch,
):
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 60, 8))
    matrix = paper.softmax(2 * query @ key.T / np.sqrt(8))
    _, expected, _ = np.linalg.svd(matrix)
    assert expected[5] < 0.9 * expected[4]
    monkeypatch.setattr(causes, "LONGEST_DECOMPOSED", 59)
    with jax.enable_x64(True):
        left, values, right = map(
            np.array, causes.largest_singular_vectors(matrix, count=5)
        )
        assert left.shape == (60, 5 + causes.SPARE_VECTORS)
        nearest = left[:, :5] * values[:5] @ right[:5]
        error = np.linalg.norm(nearest - matrix)
    assert error == pytest.approx(np.linalg.norm(expected[5:]), rel=0.005)
    np.testing.assert_allclose(values[:5], expected[:5], rtol=0.005)


def test_every_sequence_longer_than_the_landmarks_has_its_rows(errors):
    places = errors.groupby(["num_landmarks", "example"]).size().index.tolist()
    assert places == [(3, 0), (3, 1), (3, 2), (10, 0)]

    num_fixed_methods = 6
    num_drawn_methods = 4
    num_draws = 2
    num_rows = errors.groupby(["layer", "head", "num_landmarks", "example"]).size()
    assert set(num_rows) == {num_fixed_methods + num_draws * num_drawn_methods}


def test_methods_stand_in_the_order_of_the_steps(errors):
    assert tuple(errors["method"].unique()) == columns.METHODS


def kernels(query, key, num_landmarks):
    """F, A and B of valid tokens."""
    valid = list(range(len(key)))
    return paper.kernels(query, key, valid, valid, valid, num_landmarks)


def exact_inverse(a):
    return np.linalg.pinv(a, rcond=10 * len(a) * np.finfo(float).eps)


def fixed_approximations(query, key, num_landmarks):
    """The matrices of the deterministic methods."""
    matrix = softmax_matrix(query, key)
    u, s, vt = np.linalg.svd(matrix)
    s[num_landmarks:] = 0
    f, a, b = kernels(query, key, num_landmarks)
    means = [
        paper.lloyd(x, paper.segment_means(x, range(len(x)), num_landmarks), 3)
        for x in (query, key)
    ]
    k_means_f, k_means_a, k_means_b = paper.kernels_of(*means, query, key)
    return {
        columns.BEST_RANK: u @ np.diag(s) @ vt,
        columns.BEST_MIDDLE: f @ np.linalg.pinv(f) @ matrix @ np.linalg.pinv(b) @ b,
        columns.NYSTROM: f @ paper.pinv(a, 2) @ b,
        columns.EXACT_INVERSE: f @ exact_inverse(a) @ b,
        columns.NO_INVERSE: f @ b,
        columns.K_MEANS: k_means_f @ paper.pinv(k_means_a, 2) @ k_means_b,
    }


def test_deterministic_methods_have_numpys_errors(layers, errors):
    rows = errors[~errors["method"].isin(columns.RANDOM_METHODS)]
    for row in rows.itertuples():
        query, key, value = head_of(layers, row)
        matrix = softmax_matrix(query, key)
        approximations = fixed_approximations(query, key, row.num_landmarks)
        expected = relative_error(approximations[row.method] @ value, matrix @ value)
        assert row.error == pytest.approx(expected, rel=1e-6), row


def test_nystrom_has_numpys_errors_of_its_inverse(layers, errors):
    rows = errors[errors["method"] == columns.NYSTROM]
    for row in rows.itertuples():
        query, key, _ = head_of(layers, row)
        _, a, _ = kernels(query, key, row.num_landmarks)
        z = paper.pinv(a, 2)
        error = relative_error(z, exact_inverse(a))
        residual = relative_error(a @ z @ a, a)
        assert row.inverse_error == pytest.approx(error), row
        assert row.inverse_residual == pytest.approx(residual), row


def drawn_approximation(method, query, key, tokens):
    """The matrix of a method that takes these tokens."""
    if method == columns.RANDOM_LANDMARKS:
        f, a, b = paper.kernels_of(query[tokens], key[tokens], query, key)
        return f @ paper.pinv(a, 2) @ b
    num_iters = {columns.STANDARD: None, columns.STANDARD_ITERATED: 2}[method]
    valid = list(range(len(key)))
    return paper.standard_nystrom(query, key, valid, tokens, num_iters)


def test_methods_that_draw_tokens_follow_the_seed(layers, errors):
    methods = set(columns.RANDOM_METHODS) - {columns.PERFORMER}
    rows = errors[errors["method"].isin(methods)]
    for row in rows.itertuples():
        query, key, value = head_of(layers, row)
        mask = jax.numpy.arange(L) < len(key)
        seed = int(row.draw)
        tokens = random_positions(mask, row.num_landmarks, seed).tolist()
        output = drawn_approximation(row.method, query, key, tokens) @ value
        expected = relative_error(output, softmax_matrix(query, key) @ value)
        assert row.error == pytest.approx(expected, rel=1e-6), row


def test_performer_has_the_features_of_the_seed(layers, errors):
    rows = errors[(errors["method"] == columns.PERFORMER) & (errors["example"] == 0)]
    errors_by_draw = rows.groupby("draw")["error"].median()
    assert errors_by_draw[0] != errors_by_draw[1]
    *_, row = rows.itertuples()
    with jax.enable_x64(True):
        attention = make_attention(
            "performer",
            rngs=nnx.Rngs(int(row.draw)),
            num_heads=N,
            head_dim=H,
            max_length=L,
            num_features=int(row.num_landmarks),
        )
        layer = layers[row.layer]
        output = attention(layer.query[:1], layer.key[:1], layer.value[:1])
    query, key, value = head_of(layers, row)
    expected = softmax_matrix(query, key) @ value
    head_output = np.asarray(output)[0, :, row.head]
    assert row.error == pytest.approx(relative_error(head_output, expected))


def test_spread_is_the_largest_error_of_the_draws_over_the_smallest(errors):
    spreads = causes.spread_of_draws(errors)
    head_errors = errors.query("layer == 1 and head == 0 and num_landmarks == 3")
    for method in columns.RANDOM_METHODS:
        method_errors = head_errors[head_errors["method"] == method]
        draws = method_errors.pivot(index="example", columns="draw", values="error")
        assert draws.shape == (3, 2)
        expected = np.median(draws.max(axis=1) / draws.min(axis=1))
        spread = spreads.at[(1, 0, 3), columns.spread_of(method)]
        assert spread == pytest.approx(expected)
        assert spread > 1
