"""Other landmarks and inverses, by themselves and in the attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import landmarks
from nystromformer.landmarks import KMEANS_STEPS, LANDMARKS, kmeans
from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 67, 5, 7
TOKEN = np.arange(S)
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": (TOKEN % 3 != 1)}
random_tokens = jax.jit(LANDMARKS["random"], static_argnums=(1, 3))


def attend(query, key, value, mask=MASKS["all"], num_landmarks=M, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    options |= {"num_landmarks": num_landmarks}
    return one_head("nystrom", query, key, value, mask, **options)


def find_positions(x, tokens):
    """The position in x of each of the tokens."""
    return [np.flatnonzero((x == token).all(1)).item() for token in np.asarray(tokens)]


@functools.cache
def random_token_positions(length):
    """Positions of the random tokens of a sequence without padding."""
    tokens, exists = random_tokens(jnp.arange(1.0, length + 1)[:, None], M, None, 0)
    return np.asarray(tokens[:, 0])[np.asarray(exists)].astype(int) - 1


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_random_tokens_are_distinct_valid_tokens_in_order(generator):
    x = np.float32(normal(0, S, H))
    for mask in MASKS.values():
        with jax.default_prng_impl(generator):
            tokens, exists = random_tokens(x, M, jnp.asarray(mask), 0)
        assert exists.all()
        positions = find_positions(x, tokens)
        assert positions == sorted(set(positions))
        assert mask[positions].all()
        # The ranks among the valid tokens are those of a sequence without padding.
        ranks = random_token_positions(mask.sum())
        np.testing.assert_array_equal(np.flatnonzero(mask)[ranks], positions)


def test_random_positions_are_uniform_and_follow_the_seed():
    mask = jnp.ones(11, bool)
    draw = jax.jit(jax.vmap(lambda seed: landmarks.random_positions(mask, M, seed)))
    draws = np.asarray(draw(jnp.arange(300)))
    counts = np.bincount(draws.ravel(), minlength=11)
    expected = 300 * M / 11  # hypergeometric: each token is in or out of a draw
    deviation = np.sqrt(300 * M / 11 * (1 - M / 11))
    assert (np.abs(counts - expected) < 4.5 * deviation).all()
    assert len({tuple(d) for d in draws}) > 150  # of the 330 sets


def test_kmeans_is_lloyds_algorithm_from_the_segment_means():
    for scale, mask in zip((0.1, 1.0, 4.0), MASKS.values(), strict=True):
        x = normal(3, S, H, scale=scale)
        start = paper.segment_means(x, list(np.flatnonzero(mask)), M)
        expected = paper.lloyd(x[mask], start, KMEANS_STEPS)
        assert relative_error(start, expected) > 0.1
        with jax.enable_x64(True):
            valid_rows = np.where(mask[:, None], x, 0)
            means, _ = jax.jit(kmeans, static_argnums=1)(valid_rows, M, mask)
        assert relative_error(means, expected) <= TOLERANCE["float64"]


def numpy_landmarks(choice, *arrays):
    """Landmarks of float64 arrays by the paper's transcription."""
    if choice == "random":
        return [x[random_token_positions(S)] for x in arrays]
    means = [paper.segment_means(x, range(S), M) for x in arrays]
    if choice == "segment_means":
        return means
    return [paper.lloyd(x, m, KMEANS_STEPS) for x, m in zip(arrays, means, strict=True)]


@pytest.mark.parametrize(
    ("choice", "pinv", "inverse"),
    [
        *((choice, "iterative", lambda a: paper.pinv(a, 6)) for choice in LANDMARKS),
        ("segment_means", "exact", lambda a: np.linalg.pinv(a, rcond=1e-13)),
        ("segment_means", "identity", lambda a: np.eye(M)),
    ],
)
def test_nystrom_uses_these_landmarks_and_this_inverse(choice, pinv, inverse):
    query, key, value = (normal(seed, S, H, scale=2.0) for seed in range(3))
    f, a, b = paper.kernels_of(*numpy_landmarks(choice, query, key), query, key)
    expected = f @ (inverse(a) @ (b @ value))
    out = attend(query, key, value, landmarks=choice, pinv=pinv)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("choice", "inverse", "count"),
    [("random", "iterative", 4), ("random", "exact", M), ("kmeans", "identity", 71)],
)
def test_nystrom_with_a_landmark_for_each_valid_token_is_exact(choice, inverse, count):
    mask = TOKEN % 17 == 3  # 4 valid tokens
    x = [normal(seed, S, H) for seed in range(3)]
    expected = paper.attention(*x, list(np.flatnonzero(mask)))[mask]
    out = attend(*x, mask, count, landmarks=choice, pinv=inverse)
    assert relative_error(out[mask], expected) <= TOLERANCE["float64"]
    assert relative_error(attend(*x, mask, 3, landmarks=choice)[mask], expected) > 1e-2
