"""The matrices that people look at are those that attention computes with."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.softmax import softmax_attention
from nystromformer.matrices import nystrom_factors, nystrom_matrix, softmax_matrix
from nystromformer.nystrom import nystrom
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


OPTIONS = [
    {"landmarks": landmarks, "inverse": inverse, "segments": segments}
    for landmarks, inverse, segments in itertools.product(
        ("segment_means", "random", "kmeans"),
        ("iterative", "exact", "none"),
        ("valid", "padded"),
    )
]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o.values()))
def test_the_factors_times_v_are_nystrom_attention(options, mask):
    """For self- and cross-attention, few landmarks and more than tokens."""
    options, mask = {**options, "landmark_seed": 3}, MASKS[mask]
    with jax.enable_x64(True):
        for length, num_landmarks in [(S, M), (S, 29), (13, M)]:
            query, key, value = (x.astype("float64") for x in inputs(length))
            f, z, b = nystrom_factors(
                query, key, mask, num_landmarks=num_landmarks, **options
            )
            m = z.shape[0]
            assert (f.shape, z.shape, b.shape) == ((length, m), (m, m), (m, S))
            assert m == (M if num_landmarks == M else S)
            expected = nystrom(
                query, key, value, mask, num_landmarks=num_landmarks, **options
            )
            valid = slice(None) if mask is None or length != S else mask
            product = (f @ (z @ (b @ value)))[valid]
            assert relative_error(product, expected[valid]) <= TOLERANCE["float64"]
            matrix = nystrom_matrix(
                query, key, mask, num_landmarks=num_landmarks, **options
            )
            assert (
                relative_error((matrix @ value)[valid], expected[valid])
                <= TOLERANCE["float64"]
            )
            assert mask is None or not matrix[:, ~mask].any()


def test_options_that_make_no_sense_are_refused():
    query, key, _ = inputs()
    with pytest.raises(ValueError, match=r"inverse.*'svd'"):
        nystrom_factors(query, key, num_landmarks=M, inverse="svd")
