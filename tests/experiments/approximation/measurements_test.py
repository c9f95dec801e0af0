"""Every number of the figures against the paper in float64 numpy."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.experiments.approximation import measurements
from nystromformer.experiments.approximation.measurements import (
    compute_matrices,
    measure_errors,
    measure_spectra,
    vmap_heads,
)
from nystromformer.experiments.recorded_layers import Layer, record_qkv
from nystromformer.factors import nystrom_rows, softmax_matrix
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

B, L, N, H = 3, 13, 2, 5
LENGTHS = (13, 9, 4)


def layer(scale=1.0, seed=0):
    arrays = scale * np.random.default_rng(seed).normal(size=(3, B, L, N, H))
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    arrays[:, ~mask] = np.nan  # padding must not be looked at
    return Layer(*arrays, mask=mask)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def head(of, row):
    """Query, key and value [n, H] of the valid tokens."""
    n = LENGTHS[row["example"]]
    return [x[row["example"], :n, row["head"]] for x in (of.query, of.key, of.value)]


def kernels(query, key, count):
    valid = list(range(len(key)))
    return paper.kernels(query, key, valid, valid, valid, count)


def softmax(query, key):
    return paper.softmax(query @ key.T / np.sqrt(H))


def norm_inf(matrix):
    return np.abs(matrix).sum(-1).max()


INVERSES = {
    "exact": lambda a: np.linalg.pinv(a, 10 * len(a) * np.finfo(float).eps),
    "iterative": lambda a: paper.pinv(a, 2),
    "identity": lambda a: np.eye(len(a)),
}


def test_measure_errors_gives_numpys_errors_within_proposition_1(float64):
    layers = [layer(scale, seed) for seed, scale in enumerate((1.0, 4.0))]
    grid = [
        {"method": "a", "num_landmarks": 3, "pinv": "iterative", "num_pinv_iters": 2},
        {"method": "b", "num_landmarks": 6, "pinv": "exact"},
        {"method": "c", "num_landmarks": 6, "pinv": "identity"},
        {"method": "d", "num_landmarks": 9, "pinv": "identity"},
    ]
    rows = measure_errors(layers, grid).to_dict("records")
    # Sequences with no more tokens than landmarks are left out.
    assert len(rows) == 2 * N * (3 + 2 + 2 + 1)
    for row in rows:
        query, key, value = head(layers[row["layer"]], row)
        f, a, b = kernels(query, key, row["num_landmarks"])
        inverse, z = INVERSES["exact"](a), INVERSES[row["pinv"]](a)
        exact = softmax(query, key) @ value
        difference = f @ z @ b @ value - exact
        expected = {
            "error": np.linalg.norm(difference) / np.linalg.norm(exact),
            "distance": norm_inf(difference),
            "bound": (1 + norm_inf(inverse) + norm_inf(inverse - z)) * norm_inf(value),
        }
        for name, number in expected.items():
            assert row[name] == pytest.approx(number, rel=1e-6, abs=1e-9), name
        assert row["distance"] <= row["bound"]


def test_measure_errors_draws_other_landmarks_for_another_seed(float64):
    random = {"method": "x", "num_landmarks": 3, "landmarks": "random"}
    rows = measure_errors([layer()], [{**random, "landmark_seed": x} for x in (0, 1)])
    first, second = (part["error"].array for _, part in rows.groupby("landmark_seed"))
    assert (first != second).all()


def test_measure_errors_takes_other_attentions(float64):
    of, names = layer(), ("softmax", "nystrom", "performer")
    grid = [{"method": x, "num_landmarks": 3, "attention": x} for x in names]
    rows = measure_errors([of], [*grid, {"method": "ours", "num_landmarks": 3}])
    by_method = dict(list(rows.groupby("method")["error"]))
    assert by_method["softmax"].max() < 1e-6  # it has no size, and is exact
    np.testing.assert_allclose(by_method["nystrom"], by_method["ours"], rtol=1e-4)
    assert by_method["performer"].min() > 1e-3
    assert len(by_method["performer"]) == N * len(LENGTHS)


def test_measure_spectra_are_of_the_attention_matrix_of_valid_tokens(float64):
    of = layer()
    rows = measure_spectra([of])
    assert len(rows) == N * sum(LENGTHS)
    for example, length in enumerate(LENGTHS):
        chosen = rows[(rows["example"] == example) & (rows["head"] == 1)]
        query, key, _ = head(of, {"example": example, "head": 1})
        expected = np.linalg.svd(softmax(query, key), compute_uv=False)
        assert [*chosen["index"]] == [*range(1, length + 1)]
        expected /= expected[0]
        np.testing.assert_allclose(chosen["singular_value"], expected, atol=1e-12)


def test_measure_spectra_compiles_once_for_all_examples_and_layers(monkeypatch):
    traced = []

    def counted(*args):
        traced.append(args)
        return softmax_matrix(*args)

    monkeypatch.setattr(measurements, "softmax_matrix", counted)
    measure_spectra([layer(), layer(seed=1)])
    assert len(traced) == 1


def test_compute_matrices_are_of_each_head_and_its_valid_tokens(float64):
    of = layer()
    near = functools.partial(nystrom_rows, rows=slice(None), num_landmarks=4)
    functions = {
        "near": lambda query, key, mask: near(query, key, mask=mask),
        "exact": softmax_matrix,
    }
    pictures = compute_matrices(
        [of], 1, {name: vmap_heads(f) for name, f in functions.items()}
    )
    assert [*pictures] == [(0, n) for n in range(N)]
    for (_, n), found in pictures.items():
        assert [*found] == ["near", "exact"]
        query, key, _ = head(of, {"example": 1, "head": n})
        np.testing.assert_allclose(found["exact"], softmax(query, key), atol=1e-12)
        f, a, b = kernels(query, key, 4)
        np.testing.assert_allclose(found["near"], f @ paper.pinv(a, 6) @ b, atol=1e-10)


def make(attention, remat="none", **options):
    sizes = {"max_length": L, "num_heads": N, "model_dim": 6, "mlp_dim": 5}
    named = {"attention": attention, "attention_options": options, "remat": remat}
    return Encoder(EncoderConfig(vocab_size=7, **sizes, **named), rngs=nnx.Rngs(0))


def test_record_qkv_gives_the_projections_of_the_embedded_tokens():
    encoder, block = (model := make("nystrom", num_landmarks=4)), model.blocks[0]
    tokens = np.random.default_rng(0).integers(1, 7, (2, L))
    mask = np.arange(L) < np.array([[L], [7]])
    x = np.asarray(encoder.embedding.embedding[...])[tokens]
    x = x + np.asarray(encoder.positions[...])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = (x @ np.asarray(block.attention.project.kernel[...])).reshape(
        2, L, 3, N, 3
    )
    first, second = record_qkv(*nnx.split(encoder), tokens, mask)
    for i, found in enumerate((first.query, first.key, first.value)):
        assert relative_error(found, expected[:, :, i]) <= TOLERANCE["float32"]
    for of in (first, second):
        np.testing.assert_array_equal(of.mask, mask)
        assert {x.dtype.name for x in of.example(0)} == {"float64", "bool"}
    assert relative_error(second.query, first.query) > 0.1


@pytest.mark.parametrize("remat", ["none", "block"])
def test_record_qkv_records_a_shared_attention_once_a_layer(remat):
    encoder = make("linformer", remat, projection_dim=4, sharing="layerwise_per_head")
    ones = np.ones((2, L), int)
    layers = record_qkv(*nnx.split(encoder), ones, ones > 0)
    assert [of.query.shape for of in layers] == [(2, L, N, 3)] * 2
    assert all(of.mask.all() for of in layers)
