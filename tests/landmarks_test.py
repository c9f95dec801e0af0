"""Other landmarks and inverses, by themselves and in the attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.landmarks import LANDMARKS, kmeans, random_positions
from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

# Tokens, the size of a head, and landmarks.
S = 67
H = 5
M = 7
TOKEN = np.arange(S)
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": TOKEN % 3 != 1}
random_tokens = jax.jit(LANDMARKS["random"], static_argnums=(1, 3))


def attend(query, key, value, mask=MASKS["all"], num_landmarks=M, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    return one_head(
        "nystrom", query, key, value, mask, num_landmarks=num_landmarks, **options
    )


def find_positions(x, tokens):
    """The position in x of each of the tokens."""
    positions = []
    for token in np.asarray(tokens):
        is_token = (x == token).all(1)
        positions.append(np.flatnonzero(is_token).item())
    return positions


@functools.cache
def random_token_positions(length):
    """Positions of the random tokens of a sequence without padding."""
    numbered_tokens = jnp.arange(1.0, length + 1)[:, None]
    tokens, exists = random_tokens(numbered_tokens, M, None, 0)
    numbers = np.asarray(tokens[:, 0])[np.asarray(exists)]
    return numbers.astype(int) - 1


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
    draw = jax.jit(jax.vmap(lambda seed: random_positions(mask, M, seed)))
    draws = np.asarray(draw(jnp.arange(300)))
    counts = np.bincount(draws.ravel(), minlength=11)
    # Each token is in a draw or not.
    probability = M / 11
    deviation = np.sqrt(300 * probability * (1 - probability))
    assert (np.abs(counts - 300 * probability) < 4.5 * deviation).all()
    # There are 330 sets.
    assert len(np.unique(draws, axis=0)) > 150


def test_kmeans_is_lloyds_algorithm_from_the_segment_means():
    for scale, mask in zip((0.1, 1.0, 4.0), MASKS.values(), strict=True):
        x = normal(3, S, H, scale=scale)
        start = paper.segment_means(x, list(np.flatnonzero(mask)), M)
        expected = paper.lloyd(x[mask], start, num_steps=3)
        assert relative_error(start, expected) > 0.1
        with jax.enable_x64(True):
            valid_rows = np.where(mask[:, None], x, 0)
            means, _ = jax.jit(kmeans, static_argnums=1)(valid_rows, M, mask)
        assert relative_error(means, expected) <= TOLERANCE["float64"]


def numpy_landmarks(choice, *arrays):
    """Landmarks of float64 arrays by the paper's transcription."""
    if choice == "random":
        return [x[random_token_positions(S)] for x in arrays]
    landmarks = []
    for x in arrays:
        means = paper.segment_means(x, list(range(S)), M)
        if choice == "kmeans":
            means = paper.lloyd(x, means, num_steps=3)
        landmarks.append(means)
    return landmarks


@pytest.mark.parametrize(
    ("choice", "pinv", "inverse"),
    [
        *((choice, "iterative", lambda a: paper.pinv(a, 6)) for choice in LANDMARKS),
        ("segment_means", "exact", lambda a: np.linalg.pinv(a, rcond=1e-13)),
        ("segment_means", "identity", lambda a: np.eye(M)),
    ],
)
def test_nystrom_uses_these_landmarks_and_this_inverse(choice, pinv, inverse):
    query = normal(0, S, H, scale=2.0)
    key = normal(1, S, H, scale=2.0)
    value = normal(2, S, H, scale=2.0)
    query_landmarks, key_landmarks = numpy_landmarks(choice, query, key)
    f, a, b = paper.kernels_of(query_landmarks, key_landmarks, query, key)
    expected = f @ (inverse(a) @ (b @ value))
    out = attend(query, key, value, landmarks=choice, pinv=pinv)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("choice", "pinv", "count"),
    [("random", "iterative", 4), ("random", "exact", M), ("kmeans", "identity", 71)],
)
def test_nystrom_with_a_landmark_for_each_valid_token_is_exact(choice, pinv, count):
    mask = TOKEN % 17 == 3
    query, key, value = normal(0, 3, S, H)
    valid = np.flatnonzero(mask).tolist()
    assert len(valid) == 4
    expected = paper.attention(query, key, value, valid)[mask]

    def error_of_landmarks(count, pinv):
        out = attend(query, key, value, mask, count, landmarks=choice, pinv=pinv)
        return relative_error(out[mask], expected)

    assert error_of_landmarks(count, pinv) <= TOLERANCE["float64"]
    assert error_of_landmarks(3, "iterative") > 1e-2
