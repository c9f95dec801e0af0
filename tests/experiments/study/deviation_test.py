"""Every number of the figures against the paper in float64 numpy."""

import functools

import jax
import numpy as np
import pytest

from nystromformer.experiments.study.capture import Layer
from nystromformer.experiments.study.deviation import matrices, measure_heads, spectra
from nystromformer.landmarks import nystrom_factors, nystrom_rows, softmax_matrix
from tests import paper

B, L, N, H = 3, 13, 2, 5
LENGTHS = (13, 9, 4)


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


def kernels(query, key, count):
    valid = list(range(len(key)))
    return paper.kernels(query, key, valid, valid, valid, count)


def softmax(query, key):
    return paper.softmax(query @ key.T / np.sqrt(H))


def norm_inf(matrix):
    return np.abs(matrix).sum(-1).max()


def test_deviations_are_those_of_numpy_and_within_proposition_1():
    layers = [layer(scale, seed) for seed, scale in enumerate((1.0, 4.0))]
    grid = [
        {"num_landmarks": 3, "num_pinv_iters": 2},
        {"num_landmarks": 6, "pinv": "exact"},
    ]
    rows = measure_heads(layers, grid).to_dict("records")
    # Sequences with no more tokens than landmarks are left out.
    assert len(rows) == 2 * N * (3 + 2)
    for row in rows:
        query, key, value = head(layers[row["layer"]], row)
        f, a, b = kernels(query, key, row["num_landmarks"])
        inverse = np.linalg.pinv(a, 10 * len(a) * np.finfo(float).eps)
        z = inverse if row["pinv"] == "exact" else paper.pinv(a, 2)
        exact = softmax(query, key) @ value
        difference = f @ z @ b @ value - exact
        expected = {
            "error": np.linalg.norm(difference) / np.linalg.norm(exact),
            "residual": np.linalg.norm(a @ z @ a - a) / np.linalg.norm(a),
            "distance": norm_inf(difference),
            "bound": (1 + norm_inf(inverse) + norm_inf(inverse - z)) * norm_inf(value),
        }
        for name, number in expected.items():
            assert row[name] == pytest.approx(number, rel=1e-6, abs=1e-9), name
        assert row["distance"] <= row["bound"]


def test_draws_of_random_landmarks_differ_and_come_again():
    random, of = {"num_landmarks": 3, "landmarks": "random"}, layer()
    first, second = (
        measure_heads([of], [{**random, "landmark_seed": seed}]) for seed in (0, 1)
    )
    assert (first["error"] != second["error"]).all()
    query, key, value = head(of, first.loc[0])
    near = nystrom_rows(query, key, slice(None), **random, landmark_seed=0)
    exact = softmax(query, key) @ value
    error = np.linalg.norm(near @ value - exact) / np.linalg.norm(exact)
    assert first["error"][0] == pytest.approx(error, rel=1e-9)


def test_the_spectrum_is_that_of_the_attention_matrix_of_valid_tokens():
    of = layer()
    rows = spectra([of])
    assert len(rows) == N * sum(LENGTHS)
    for example, length in enumerate(LENGTHS):
        chosen = rows[(rows["example"] == example) & (rows["head"] == 1)]
        query, key, _ = head(of, {"example": example, "head": 1})
        expected = np.linalg.svd(softmax(query, key), compute_uv=False)
        assert [*chosen["index"]] == [*range(1, length + 1)]
        expected /= expected[0]
        np.testing.assert_allclose(chosen["singular_value"], expected, atol=1e-12)


def test_matrices_are_of_each_head_and_cropped_to_its_tokens():
    of = layer()
    factors = functools.partial(nystrom_factors, num_landmarks=4)
    functions = {
        "near": lambda *x: factors(*x)[0] @ factors(*x)[1] @ factors(*x)[2],
        "exact": softmax_matrix,
        "inverse": lambda *x: factors(*x)[1],
    }
    pictures = matrices([of], 1, functions)
    assert [*pictures] == [(0, n) for n in range(N)]
    for (_, n), found in pictures.items():
        assert [*found] == ["near", "exact", "inverse"]  # as given, not sorted
        query, key, _ = head(of, {"example": 1, "head": n})
        np.testing.assert_allclose(found["exact"], softmax(query, key), atol=1e-12)
        f, a, b = kernels(query, key, 4)
        z = paper.pinv(a, 6)
        np.testing.assert_allclose(found["inverse"], z, atol=1e-9)
        np.testing.assert_allclose(found["near"], f @ z @ b, atol=1e-10)
