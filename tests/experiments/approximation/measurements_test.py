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
from nystromformer.experiments.recorded_layers import AttentionInputs, record_qkv
from nystromformer.factors import nystrom_rows, softmax_matrix
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

# Batch, length, heads and the size of a head.
B = 3
L = 13
N = 2
H = 5
LENGTHS = (13, 9, 4)


def make_layer(scale=1.0, seed=0):
    """Random queries, keys and values. Padding is NaN, since nothing may look at it."""
    rng = np.random.default_rng(seed)
    query, key, value = scale * rng.normal(size=(3, B, L, N, H))
    mask = np.arange(L) < np.array(LENGTHS)[:, None]
    for array in (query, key, value):
        array[~mask] = np.nan
    return AttentionInputs(query, key, value, mask=mask)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def valid_tokens(layer, example, head):
    """Query, key and value [n, H] of the valid tokens of a head."""
    n = LENGTHS[example]
    arrays = (layer.query, layer.key, layer.value)
    return [array[example, :n, head] for array in arrays]


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
    layers = [make_layer(scale=1.0, seed=0), make_layer(scale=4.0, seed=1)]
    grid = [
        {"method": "a", "num_landmarks": 3, "pinv": "iterative", "num_pinv_iters": 2},
        {"method": "b", "num_landmarks": 6, "pinv": "exact"},
        {"method": "c", "num_landmarks": 6, "pinv": "identity"},
        {"method": "d", "num_landmarks": 9, "pinv": "identity"},
    ]

    rows = list(measure_errors(layers, grid).itertuples())

    # Sequences with no more tokens than landmarks are left out.
    assert len(rows) == 2 * N * (3 + 2 + 2 + 1)
    for row in rows:
        query, key, value = valid_tokens(layers[row.layer], row.example, row.head)
        f, a, b = kernels(query, key, row.num_landmarks)
        inverse = INVERSES["exact"](a)
        z = INVERSES[row.pinv](a)
        exact = softmax(query, key) @ value
        difference = f @ z @ b @ value - exact
        error = np.linalg.norm(difference) / np.linalg.norm(exact)
        bound = (1 + norm_inf(inverse) + norm_inf(inverse - z)) * norm_inf(value)

        near = functools.partial(pytest.approx, rel=1e-6, abs=1e-9)
        assert row.error == near(error)
        assert row.distance == near(norm_inf(difference))
        assert row.bound == near(bound)
        assert row.distance <= row.bound


def test_measure_errors_draws_other_landmarks_for_another_seed(float64):
    random = {"method": "x", "num_landmarks": 3, "landmarks": "random"}
    grid = [{**random, "landmark_seed": 0}, {**random, "landmark_seed": 1}]
    rows = measure_errors([make_layer()], grid)
    first = rows[rows["landmark_seed"] == 0]["error"].array
    second = rows[rows["landmark_seed"] == 1]["error"].array
    assert (first != second).all()


def test_measure_errors_takes_other_attentions(float64):
    grid = [{"method": "factors", "num_landmarks": 3}]
    for name in ("softmax", "nystrom", "performer"):
        grid.append({"method": name, "num_landmarks": 3, "attention": name})

    rows = measure_errors([make_layer()], grid)

    errors = rows.set_index("method")["error"]
    # Softmax has no size, and is exact.
    assert errors["softmax"].max() < 1e-6
    np.testing.assert_allclose(errors["nystrom"], errors["factors"], rtol=1e-4)
    assert errors["performer"].min() > 1e-3
    assert len(errors["performer"]) == N * len(LENGTHS)


def test_measure_spectra_are_of_the_attention_matrix_of_valid_tokens(float64):
    layer = make_layer()
    rows = measure_spectra([layer])
    assert len(rows) == N * sum(LENGTHS)
    for example, length in enumerate(LENGTHS):
        head_rows = rows[(rows["example"] == example) & (rows["head"] == 1)]
        assert list(head_rows["index"]) == list(range(1, length + 1))
        query, key, _ = valid_tokens(layer, example, head=1)
        expected = np.linalg.svd(softmax(query, key), compute_uv=False)
        expected /= expected[0]
        np.testing.assert_allclose(head_rows["singular_value"], expected, atol=1e-12)


def test_measure_spectra_compiles_once_for_all_examples_and_layers(monkeypatch):
    traced_arguments = []

    def count_traces(*arguments):
        traced_arguments.append(arguments)
        return softmax_matrix(*arguments)

    monkeypatch.setattr(measurements, "softmax_matrix", count_traces)
    measure_spectra([make_layer(), make_layer(seed=1)])
    assert len(traced_arguments) == 1


def nystrom_matrix(query, key, mask):
    return nystrom_rows(query, key, slice(None), mask, num_landmarks=4)


def test_compute_matrices_are_of_each_head_and_its_valid_tokens(float64):
    layer = make_layer()
    functions = {
        "nystrom": vmap_heads(nystrom_matrix),
        "exact": vmap_heads(softmax_matrix),
    }

    matrices_of_head = compute_matrices([layer], 1, functions)

    assert list(matrices_of_head) == [(0, head) for head in range(N)]
    for (_, head), matrices in matrices_of_head.items():
        assert list(matrices) == ["nystrom", "exact"]
        query, key, _ = valid_tokens(layer, 1, head)
        np.testing.assert_allclose(matrices["exact"], softmax(query, key), atol=1e-12)
        f, a, b = kernels(query, key, 4)
        expected = f @ paper.pinv(a, 6) @ b
        np.testing.assert_allclose(matrices["nystrom"], expected, atol=1e-10)


def make_encoder(attention, remat="none", **options):
    config = EncoderConfig(
        vocab_size=7,
        max_length=L,
        num_heads=N,
        model_dim=6,
        mlp_dim=5,
        attention=attention,
        attention_options=options,
        remat=remat,
    )
    return Encoder(config, rngs=nnx.Rngs(0))


def first_projections(encoder, tokens):
    """Queries, keys and values of the first layer in numpy, [2, L, 3, N, 3]."""
    embeddings = np.asarray(encoder.embedding.embedding[...])
    x = embeddings[tokens] + np.asarray(encoder.positions[...])
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + 1e-5)
    kernel = np.asarray(encoder.blocks[0].attention.project.kernel[...])
    return (x @ kernel).reshape(2, L, 3, N, 3)


def test_record_qkv_gives_the_projections_of_the_embedded_tokens():
    encoder = make_encoder("nystrom", num_landmarks=4)
    tokens = np.random.default_rng(0).integers(1, 7, (2, L))
    mask = np.arange(L) < np.array([[L], [7]])

    first, second = record_qkv(*nnx.split(encoder), tokens, mask)

    expected = first_projections(encoder, np.where(mask, tokens, 0))  # 0 is padding
    for index, projection in enumerate((first.query, first.key, first.value)):
        error = relative_error(projection, expected[:, :, index])
        assert error <= TOLERANCE["float32"]
    for layer in (first, second):
        np.testing.assert_array_equal(layer.mask, mask)
        assert {x.dtype.name for x in layer.example(0)} == {"float64", "bool"}
    assert relative_error(second.query, first.query) > 0.1


@pytest.mark.parametrize("remat", ["none", "block"])
def test_record_qkv_records_a_shared_attention_once_a_layer(remat):
    encoder = make_encoder(
        "linformer", remat, projection_dim=4, sharing="layerwise_per_head"
    )
    ones = np.ones((2, L), int)
    layers = record_qkv(*nnx.split(encoder), ones, ones > 0)
    assert len(layers) == 2
    for layer in layers:
        assert layer.query.shape == (2, L, N, 3)
        assert layer.mask.all()
