"""Nyström attention at lengths and logits far from any trained model's.

The inputs are small integers times powers of two, the head dim is 4 and segments have
2^k tokens, so that every logit is exact in float32: what the table of tolerances then
bounds is the arithmetic of the method, however large the logits are.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.nystrom import nystrom_attention
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

H = 4
SCALES = (2.0**-10, 1.0, 2.0**10)


KINDS = (
    lambda rng, length: rng.integers(-3, 4, (length, H)),
    lambda rng, length: np.tile([1, -2, 0, 3], (length, 1)),
    lambda rng, length: rng.integers(-3, 4, (2, H))[rng.integers(0, 2, length)],
    lambda rng, length: np.eye(H)[rng.integers(0, H, length)],
)


def extremes(length: int, dtype: str) -> list[jax.Array]:
    """Query, key, value [B, L, 1, H]: each kind at each scale of the logits."""
    rng = np.random.default_rng(length)
    rows = [
        [kind(rng, length) * factor for factor in (scale, 1, 1)]
        for kind in KINDS
        for scale in SCALES
    ]
    stacked = np.array(rows, np.float32)[:, :, :, None]  # [B, 3, L, 1, H]
    return [jnp.asarray(stacked[:, i], dtype) for i in range(3)]


# Not 512 landmarks: where logits are nearly equal, six iterations in float32 leave
# a little more than the table admits.
LONG = [(4096, 64), (16_384, 256), (65_536, 1), (65_536, 64)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("length", "num_landmarks"),
    [(64, 1), (64, 8), (64, 64)]
    + [pytest.param(*sizes, marks=pytest.mark.slow) for sizes in LONG],
)
def test_nystrom_attention_at_extremes_keeps_the_tolerance(
    length, num_landmarks, dtype
):
    qkv = extremes(length, dtype)
    attention = functools.partial(nystrom_attention, num_landmarks=num_landmarks)
    attend = jax.jit(attention)
    for row in range(len(qkv[0])):
        out = attend(*(x[row : row + 1] for x in qkv))[0, :, 0]
        query, key, value = (np.asarray(x[row, :, 0], float) for x in qkv)
        mask = np.ones(length)
        expected = paper.nystrom(query, key, value, mask, num_landmarks)
        error = relative_error(out, expected)
        assert error <= TOLERANCE[dtype], (row, error)
