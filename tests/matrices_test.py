"""The matrices that people look at are those that attention computes with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.softmax import softmax_attention
from nystromformer.matrices import nystrom_factors, nystrom_matrix, softmax_matrix
from nystromformer.nystrom import iterative_pinv, nystrom
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 23, 5, 7
TOKEN = np.arange(S)
MASKS = {
    "none": None,
    "padding": jnp.asarray(TOKEN < 19),
    "holes": jnp.asarray(TOKEN % 3 != 1),
    "few": jnp.asarray(TOKEN % 7 == 2),
}


def inputs(length=S, scale=1.0):
    rng = np.random.default_rng(0)
    query, *rest = (scale * rng.normal(size=(n, H)) for n in (length, S, S))
    return [jnp.float32(x) for x in (query, *rest)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_softmax_matrix_times_v_is_softmax_attention(mask, scale):
    mask = MASKS[mask]
    query, key, value = inputs(13, scale)
    matrix = softmax_matrix(query, key, mask)
    assert matrix.shape == (13, S)
    assert mask is None or not np.asarray(matrix)[:, ~np.asarray(mask)].any()
    one_head = (x[None, :, None] for x in (query, key, value))
    expected = softmax_attention(*one_head, mask=mask, precision="highest")
    product = jnp.matmul(matrix, value, precision="highest")
    assert relative_error(product, expected[0, :, 0]) <= TOLERANCE["float32"]


OPTIONS = {
    "default": {},
    "random": {"landmarks": "random", "landmark_seed": 3},
    "kmeans": {"landmarks": "kmeans", "inverse": "exact"},
    "padded": {"segments": "padded", "inverse": "none", "num_pinv_iters": 2},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS)
def test_nystrom_matrix_times_v_is_nystrom_attention(options, mask):
    """For self- and cross-attention, few landmarks and more than tokens."""
    mask = MASKS[mask]
    with jax.enable_x64(True):
        for length, num_landmarks in [(S, M), (S, 29), (13, M)]:
            query, key, value = (x.astype("float64") for x in inputs(length))
            changed = {**OPTIONS[options], "num_landmarks": num_landmarks}
            matrix = nystrom_matrix(query, key, mask, **changed)
            assert matrix.shape == (length, S)
            assert matrix.dtype == "float64"
            expected = nystrom(query, key, value, mask, **changed)
            valid = slice(None) if mask is None or length != S else mask
            product = (matrix @ value)[valid]
            assert relative_error(product, expected[valid]) <= TOLERANCE["float64"]
            assert mask is None or not matrix[:, ~mask].any()


@pytest.mark.parametrize("mask", ["none", "padding", "holes"])
def test_the_factors_are_those_of_the_paper(mask):
    with jax.enable_x64(True):
        query, key, _ = (x.astype("float64") for x in inputs())
        valid = (TOKEN if mask == "none" else np.flatnonzero(MASKS[mask])).tolist()
        of_paper = paper.kernels(
            np.asarray(query), np.asarray(key), valid, valid, valid, M
        )
        ours = map(
            np.asarray, nystrom_factors(query, key, MASKS[mask], num_landmarks=M)
        )
        (f, a, b), (paper_f, *rest) = ours, of_paper
        found = f[valid], a, b[:, valid]
        for x, expected in zip(found, (paper_f[valid], *rest), strict=True):
            assert relative_error(x, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize("landmarks", ["segment_means", "random", "kmeans"])
def test_the_nystrom_matrix_is_the_product_of_its_factors(landmarks):
    options = {"num_landmarks": M, "landmarks": landmarks, "landmark_seed": 5}
    mask = MASKS["padding"]
    with jax.enable_x64(True):
        query, key, _ = (x.astype("float64") for x in inputs())
        noisy = [jnp.where(mask[:, None], x, jnp.nan) for x in (query, key)]
        f, a, b = nystrom_factors(noisy[0], noisy[1], mask, **options)
        assert relative_error(a.sum(1), np.ones(M)) <= TOLERANCE["float64"]
        for iters in (2, 6):
            expected = nystrom_matrix(query, key, mask, num_pinv_iters=iters, **options)
            product = f @ iterative_pinv(a, iters) @ b
            keep = np.asarray(mask)
            assert relative_error(product[keep], expected[keep]) <= TOLERANCE["float64"]


def test_bfloat16_is_looked_at_in_float32():
    query, key, _ = (x.astype("bfloat16") for x in inputs())
    wide = [x.astype("float32") for x in (query, key)]
    assert (softmax_matrix(query, key) == softmax_matrix(*wide)).all()
    found = nystrom_matrix(query, key, num_landmarks=M)
    assert found.dtype == "float32"
    assert (found == nystrom_matrix(*wide, num_landmarks=M)).all()


@pytest.mark.parametrize("function", [nystrom_matrix, nystrom_factors])
def test_options_that_make_no_sense_are_refused(function):
    query, key, _ = inputs()
    with pytest.raises(ValueError, match=r"landmarks.*'svd'"):
        function(query, key, num_landmarks=M, landmarks="svd")
    with pytest.raises(ValueError, match=r"num_landmarks must be at least 1"):
        function(query, key, num_landmarks=0)
