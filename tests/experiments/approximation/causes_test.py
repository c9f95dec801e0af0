"""The error by its causes against float64 numpy."""

import jax
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.experiments.approximation import causes
from nystromformer.experiments.recorded_layers import Layer
from nystromformer.landmarks import random_positions
from tests import paper

L, N, H = 13, 2, 5
LENGTHS = (13, 9, 4)
COUNTS = (3, 6, 10)


def make_layer(seed):
    arrays = 2 * np.random.default_rng(seed).normal(size=(3, len(LENGTHS), L, N, H))
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    arrays[:, ~mask] = np.nan  # padding must not be looked at
    return Layer(*arrays, mask=mask)


@pytest.fixture(scope="module")
def layers():
    return [make_layer(0), make_layer(1)]


@pytest.fixture(scope="module")
def errors(layers):
    with jax.enable_x64(True):
        return causes.measure_causes(layers, COUNTS, num_pinv_iters=2, num_draws=2)


def head_of(layers, row):
    """Query, key and value [n, H] of the valid tokens of a row's head."""
    n = LENGTHS[row.example]
    return [x[row.example, :n, row.head] for x in layers[row.layer][:3]]


def relative(difference, exact):
    return np.linalg.norm(difference) / np.linalg.norm(exact)


def test_every_sequence_longer_than_the_landmarks_has_its_rows(errors):
    places = errors.groupby(["num_landmarks", "example"]).size().index.tolist()
    assert places == [(3, 0), (3, 1), (3, 2), (6, 0), (6, 1), (10, 0)]
    assert set(
        errors.groupby(["layer", "head", "num_landmarks", "example"]).size()
    ) == {
        5 + 2 * 4  # methods without chance, and two draws of the others
    }


def test_methods_stand_in_the_order_of_the_steps(errors):
    assert tuple(errors["method"].unique()) == causes.METHODS


def test_methods_without_chance_have_numpys_errors(layers, errors):
    rows = errors[~errors["method"].isin(causes.DRAWN)]
    for row in rows.itertuples():
        query, key, value = head_of(layers, row)
        valid = list(range(len(key)))
        matrix = paper.softmax(query @ key.T / np.sqrt(H))
        f, a, b = paper.kernels(query, key, valid, valid, valid, row.num_landmarks)
        u, s, vt = np.linalg.svd(matrix)
        s[row.num_landmarks :] = 0
        inverse = np.linalg.pinv(a, 10 * len(a) * np.finfo(float).eps)
        approximations = {
            causes.BEST_RANK: u @ np.diag(s) @ vt,
            causes.BEST_MIDDLE: f @ np.linalg.pinv(f) @ matrix @ np.linalg.pinv(b) @ b,
            causes.NYSTROM: f @ paper.pinv(a, 2) @ b,
            causes.EXACT_INVERSE: f @ inverse @ b,
            causes.NO_INVERSE: f @ b,
        }
        error = relative((approximations[row.method] - matrix) @ value, matrix @ value)
        assert row.error == pytest.approx(error, rel=1e-6), row

        if row.method == causes.NYSTROM:
            z = paper.pinv(a, 2)
            assert row.inverse_error == pytest.approx(relative(z - inverse, inverse))
            assert row.inverse_residual == pytest.approx(relative(a @ z @ a - a, a))


def test_methods_that_draw_follow_the_seed(layers, errors):
    rows = errors[errors["method"].isin(causes.DRAWN)]
    for row in rows.itertuples():
        query, key, value = head_of(layers, row)
        exact = paper.softmax(query @ key.T / np.sqrt(H)) @ value
        seed = int(row.draw)
        mask = jax.numpy.arange(L) < len(key)
        tokens = random_positions(mask, row.num_landmarks, seed).tolist()
        if row.method == causes.RANDOM_LANDMARKS:
            f, a, b = paper.kernels_of(query[tokens], key[tokens], query, key)
            found = f @ paper.pinv(a, 2) @ b @ value
        elif row.method in (causes.STANDARD, causes.STANDARD_ITERATED):
            valid = list(range(len(key)))
            num_iters = 2 if row.method == causes.STANDARD_ITERATED else None
            found = paper.standard_nystrom(query, key, valid, tokens, num_iters) @ value
        else:
            continue
        assert row.error == pytest.approx(relative(found - exact, exact), rel=1e-6), row


def test_performer_has_the_features_of_the_seed(layers, errors):
    rows = errors[(errors["method"] == causes.PERFORMER) & (errors["example"] == 0)]
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
        arrays = [x[:1] for x in layers[row.layer][:3]]
        found = np.asarray(attention(*arrays))[0, :, row.head]
    query, key, value = head_of(layers, row)
    exact = paper.softmax(query @ key.T / np.sqrt(H)) @ value
    assert row.error == pytest.approx(relative(found - exact, exact))


def test_spread_is_the_largest_error_of_the_draws_over_the_smallest(errors):
    spreads = causes.spread_of_draws(errors)
    head = {"layer": 1, "head": 0, "num_landmarks": 3}
    of_head = errors.query("layer == 1 and head == 0 and num_landmarks == 3")
    for method in causes.DRAWN:
        draws = of_head[of_head["method"] == method].pivot(
            index="example", columns="draw", values="error"
        )
        assert draws.shape == (3, 2)
        expected = np.median(draws.max(axis=1) / draws.min(axis=1))
        spread = spreads.at[tuple(head.values()), method + causes.SPREAD]
        assert spread == pytest.approx(expected)
        assert spread > 1
