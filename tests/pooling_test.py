"""Pooling with padding in front of tokens or between them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.classifiers import pool_last, pool_max, pool_mean, pool_padded_mean
from tests.tolerance import TOLERANCE, relative_error

# Batch, length and the size of the vectors.
B = 3
L = 12
D = 5


@pytest.mark.parametrize(
    ("pool", "pool_row"),
    [
        (pool_mean, lambda row: row.mean(0)),
        (
            functools.partial(pool_padded_mean, max_length=17),
            lambda row: row.sum(0) / 17,
        ),
        (pool_max, lambda row: row.max(0)),
        (pool_last, lambda row: row[-1]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pooling_is_of_valid_tokens_wherever_padding_stands(pool, pool_row, dtype):
    """In front, as of prompts, or between, as of an `ignore_id`."""
    x = np.random.default_rng(0).normal(size=(B, L, D)).astype(dtype)
    mask = np.random.default_rng(1).random((B, L)) < 0.5
    mask[0] = np.arange(L) >= 7
    mask[1, -3:] = False
    rows = zip(np.float64(x), mask, strict=True)
    expected = [pool_row(row[is_valid]) for row, is_valid in rows]
    with jax.enable_x64(dtype == "float64"):
        pooled = pool(jnp.asarray(x), jnp.asarray(mask))
        assert pooled.dtype == dtype
        tolerance = TOLERANCE["same" if dtype == "float32" else "float64"]
        assert relative_error(pooled, expected) <= tolerance
