"""Other landmarks and inverses, and the approximated matrix: its factors and rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import landmarks
from nystromformer.landmarks import KMEANS_STEPS, LANDMARKS, kmeans
from tests import paper
from tests.attention.cases import normal, one_head
from tests.jaxpr import quadratic_shapes
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 67, 5, 7
TOKEN = np.arange(S)
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": (TOKEN % 3 != 1)}
random_tokens = jax.jit(LANDMARKS["random"], static_argnums=(1, 3))


def attend(query, key, value, mask=MASKS["all"], num_landmarks=M, **options):
    """The attention of one head in float64, landmarks and inverse by name."""
    options |= {"num_landmarks": num_landmarks}
    return one_head("nystrom", query, key, value, mask, **options)


def positions(x, tokens):
    """Where in x each of the tokens stands."""
    return [np.flatnonzero((x == token).all(1)).item() for token in np.asarray(tokens)]


@functools.cache
def drawn(length):
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
        at = positions(x, tokens)
        assert at == sorted(set(at))
        assert mask[at].all()
        # The ranks among the valid tokens are those of a sequence without padding.
        assert (np.flatnonzero(mask)[drawn(mask.sum())] == at).all()


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
            means, _ = kmeans(jnp.where(mask[:, None], x, 0), M, jnp.asarray(mask))
        assert relative_error(means, expected) <= TOLERANCE["float64"]


def own_landmarks(choice, *arrays):
    """Landmarks of float64 arrays by the paper's transcription."""
    if choice == "random":
        return [x[drawn(S)] for x in arrays]
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
    f, a, b = paper.kernels_of(*own_landmarks(choice, query, key), query, key)
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"landmarks": "random", "landmark_seed": 3, "num_pinv_iters": 2},
        {"landmarks": "kmeans", "pinv": "exact"},
        {"landmark_padding": "count", "pinv": "identity"},
    ],
    ids=str,
)
def test_factors_and_rows_are_of_the_matrix_that_nystrom_applies(options):
    """In self- and cross-attention, few landmarks and more than tokens, all masks."""
    few, holes = TOKEN % 17 == 3, MASKS["holes"]
    cases = [(S, M, holes), (S, M, few)]
    if not options:
        cases += [(S, M, MASKS["all"]), (S, 71, few), (13, M, few), (5, M, few)]
    for length, count, mask in cases:
        query, key, value = (normal(i, n, H) for i, n in enumerate((length, S, S)))
        expected = attend(query, key, value, mask, count, **options)
        with jax.enable_x64(True):
            noisy = jnp.where(mask[:, None], key, jnp.nan)
            x = jnp.asarray(query), noisy, None if mask.all() else jnp.asarray(mask)
            given = {"num_landmarks": count, **options}
            factors = jax.jit(functools.partial(landmarks.nystrom_factors, **given))(*x)
            two = functools.partial(landmarks.nystrom_rows, rows=[4, 0], **given)
            rows = jax.jit(two)(*x[:2], mask=x[2])
        f, z, b = map(np.asarray, factors)
        matrix, mine = f @ z @ b, mask if length == S else slice(None)
        found = matrix @ (value * mask[:, None])
        assert relative_error(found[mine], expected[mine]) <= TOLERANCE["float64"]
        assert not matrix[:, ~mask].any()
        assert relative_error(rows, matrix[[4, 0]]) <= TOLERANCE["float64"]


@pytest.mark.parametrize("count", [M, 71])
def test_factors_and_rows_are_those_of_cross_attention_with_t_equal_to_s(count):
    mask = MASKS["padding"]
    query, key, value = (normal(i, S, H) for i in range(3))
    given = {"num_landmarks": count, "cross_attention": True}
    expected = attend(query, key, value, mask, count, cross_attention=True)
    with jax.enable_x64(True):
        x = [jnp.asarray(y) for y in (query, key)]
        f, z, b = landmarks.nystrom_factors(*x, mask, **given)
        rows = landmarks.nystrom_rows(*x, [S - 1, 0], mask, **given)
    matrix = np.asarray(f) @ np.asarray(z) @ np.asarray(b)
    assert relative_error(matrix @ value, expected) <= TOLERANCE["float64"]
    assert relative_error(rows, matrix[[S - 1, 0]]) <= TOLERANCE["float64"]


def test_nystrom_rows_form_no_matrix():
    long = 101
    x = [jnp.asarray(normal(i, long, H), "float32") for i in range(2)]
    row = functools.partial(landmarks.nystrom_rows, num_landmarks=M)
    assert not quadratic_shapes(long, long, lambda *x: row(*x, [0, 3]), *x)
    assert quadratic_shapes(long, long, landmarks.softmax_matrix, *x)
    assert np.isnan(row(*x, [long])).all()  # no such row
