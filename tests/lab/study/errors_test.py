"""Every number of the figures against the paper in float64 numpy."""

import jax
import numpy as np
import pytest

from nystromformer.lab.study import errors
from nystromformer.lab.study.capture import Layer
from tests import paper

B, L, N, H = 3, 13, 2, 5
LENGTHS = (13, 9, 4)
COUNTS = (3, 6)


def layer(scale=1.0, seed=0):
    arrays = scale * np.random.default_rng(seed).normal(size=(3, B, L, N, H))
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    arrays[:, ~mask] = np.nan  # padding must not be looked at
    return Layer(*arrays, mask=mask)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def head(of, row):
    """Query, key and value [n, H] of the valid tokens."""
    n = LENGTHS[row["example"]]
    arrays = (of.query, of.key, of.value)
    return [x[row["example"], :n, row["head"]] for x in arrays]


def exact(query, key, value):
    return paper.attention(query, key, value, list(range(len(key))))


def kernels(query, key, count):
    valid = list(range(len(key)))
    return paper.kernels(query, key, valid, valid, valid, count)


def norm_inf(matrix):
    return np.abs(matrix).sum(-1).max()


def test_errors_of_segment_means_are_those_of_the_paper():
    layers = [layer(1.0), layer(4.0, seed=1)]
    rows = errors.landmark_rows(layers, COUNTS, num_pinv_iters=6)
    # Sequences with no more tokens than landmarks are left out.
    assert len(rows) == 2 * 3 * N * (3 + 2)
    assert {row["landmarks"] for row in rows} == {"segment_means", "random", "kmeans"}
    for row in rows:
        query, key, value = head(layers[row["layer"]], row)
        assert len(query) > row["num_landmarks"]
        assert np.isfinite(row["error"])
        if row["landmarks"] == "segment_means":
            expected = exact(query, key, value)
            found = paper.nystrom(
                query, key, value, np.ones(len(key), bool), row["num_landmarks"]
            )
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert row["error"] == pytest.approx(error, rel=1e-9)


def test_iterations_and_the_exact_inverse_are_those_of_numpy():
    of = layer()
    rows = errors.iteration_rows([of], [4], [2, 5])
    assert len(rows) == 3 * N * 2
    for row in rows:
        query, key, value = head(of, row)
        f, a, b = kernels(query, key, 4)
        if row["inverse"] == "exact":
            z = np.linalg.pinv(a)
        else:
            z = paper.pinv(a, row["num_pinv_iters"])
        expected = exact(query, key, value)
        error = np.linalg.norm(f @ z @ b @ value - expected) / np.linalg.norm(expected)
        residual = np.linalg.norm(a @ z @ a - a) / np.linalg.norm(a)
        assert row["error"] == pytest.approx(error, rel=1e-8)
        assert row["residual"] == pytest.approx(residual, rel=1e-8, abs=1e-9)


def test_the_bound_is_that_of_proposition_1_and_holds_everywhere():
    layers = [layer(scale, seed) for seed, scale in enumerate((0.1, 1.0, 4.0))]
    rows = errors.bound_rows(layers, COUNTS, num_pinv_iters=6)
    assert len(rows) == 3 * N * (3 + 2)
    for row in rows:
        query, key, value = head(layers[row["layer"]], row)
        f, a, b = kernels(query, key, row["num_landmarks"])
        z, inverse = paper.pinv(a, 6), np.linalg.pinv(a)
        error = norm_inf(exact(query, key, value) - f @ z @ b @ value)
        factor = 1 + norm_inf(inverse) + norm_inf(inverse - z)
        assert row["error"] == pytest.approx(error, rel=1e-8)
        assert row["bound"] == pytest.approx(factor * norm_inf(value), rel=1e-6)
        assert row["error"] <= row["bound"]


def softmax(query, key):
    return paper.softmax(query @ key.T / np.sqrt(H))


def test_the_spectrum_is_that_of_the_attention_matrix_of_valid_tokens():
    of = layer()
    rows = errors.spectrum_rows([of])
    assert len(rows) == N * sum(LENGTHS)
    for example, length in enumerate(LENGTHS):
        chosen = [r for r in rows if (r["example"], r["head"]) == (example, 1)]
        query, key, _ = head(of, chosen[0])
        expected = np.linalg.svd(softmax(query, key), compute_uv=False)
        assert [r["index"] for r in chosen] == [*range(1, length + 1)]
        values = [r["singular_value"] for r in chosen]
        np.testing.assert_allclose(values, expected / expected[0], atol=1e-12)


def test_matrices_are_cropped_and_their_errors_those_of_numpy():
    of = layer()
    variants = [{"num_landmarks": 4}, {"num_landmarks": 2}]
    pictures, rows = errors.matrices([of], 1, variants)
    assert [len(line) for line in pictures] == [3] * N
    assert [(r["head"], r["num_landmarks"]) for r in rows] == [
        *((0, 4), (0, 2), (1, 4), (1, 2))
    ]
    for row in rows:
        query, key, _ = head(of, row)
        first, *others = pictures[row["head"]]
        s = softmax(query, key)
        np.testing.assert_allclose(first, s, atol=1e-12)
        f, a, b = kernels(query, key, row["num_landmarks"])
        expected = f @ paper.pinv(a, 6) @ b
        found = others[variants.index({"num_landmarks": row["num_landmarks"]})]
        np.testing.assert_allclose(found, expected, atol=1e-10)
        error = np.linalg.norm(expected - s) / np.linalg.norm(s)
        assert row["error"] == pytest.approx(error, rel=1e-9)
