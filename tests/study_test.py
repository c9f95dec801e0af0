"""Beside the paper: other landmarks and inverses, and the matrix, its factors, rows."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import study
from nystromformer.study import KMEANS_STEPS, kmeans, landmarks_by
from tests import paper
from tests.attention.cases import compiled, normal, one_head
from tests.jaxpr import quadratic_shapes
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 67, 5, 7
TOKEN = np.arange(S)
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": (TOKEN % 3 != 1)}


def inputs(dtype="float64", scale=1.0):
    return [jnp.asarray(normal(seed, S, H, scale=scale), dtype) for seed in range(3)]


def attend(query, key, value, mask=MASKS["all"], num_landmarks=M, **options):
    """The attention of one head, landmarks and inverse by name."""
    options |= {"num_landmarks": num_landmarks}
    return one_head("nystrom", query, key, value, mask, **options)


@functools.partial(jax.jit, static_argnums=(1, 3))
def random_tokens(x, num_landmarks, mask, seed):
    return landmarks_by("random", seed)(x, num_landmarks, mask)


@functools.cache
def drawn(length, seed=0):
    """Positions of the random tokens: each token's one number is its position."""
    x = jnp.arange(1.0, length + 1)[:, None]
    tokens, exists = random_tokens(x, M, None, seed)
    return np.asarray(tokens[:, 0])[np.asarray(exists)].astype(int) - 1


def test_random_tokens_are_distinct_valid_tokens_in_order():
    x = normal(0, S, H)
    for mask in MASKS.values():
        tokens, exists = random_tokens(jnp.float32(x), M, jnp.asarray(mask), 0)
        tokens = np.asarray(tokens)
        assert exists.all()
        at = [
            np.flatnonzero((np.float32(x) == token).all(1)).item() for token in tokens
        ]
        assert at == sorted(set(at))
        assert mask[at].all()
        # The ranks among the valid tokens are those of a sequence without padding.
        assert (np.flatnonzero(mask)[drawn(mask.sum())] == at).all()


def test_random_tokens_are_drawn_uniformly_and_by_the_seed():
    mask = jnp.ones(11, bool)
    draw = jax.jit(jax.vmap(lambda seed: study.random_positions(mask, M, seed)))
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
            kept = jnp.where(mask[:, None], x, 0)
            means, _ = kmeans(kept, M, jnp.asarray(mask))
        assert relative_error(means, expected) <= TOLERANCE["float64"]


def test_a_cluster_without_tokens_keeps_its_mean(monkeypatch):
    start = jnp.float32([[0.0], [500.0], [10.0]]), jnp.ones(3, bool)
    monkeypatch.setattr(study, "segment_means", lambda *_: start)
    means, _ = kmeans(jnp.float32([[0.0], [1.0], [10.0], [11.0]]), 3, None)
    np.testing.assert_array_equal(means, [[0.5], [500.0], [10.5]])


def test_farthest_tokens_are_those_of_the_loop_from_a_drawn_one():
    firsts = set()
    for seed, mask in itertools.product(range(2), MASKS.values()):
        x, valid = normal(0, S, H), np.flatnonzero(mask).tolist()
        with jax.enable_x64(True):
            choose = landmarks_by("farthest", seed)
            choose = jax.jit(choose, static_argnums=1)
            tokens, exists = choose(jnp.asarray(x), M, jnp.asarray(mask))
            few, _ = choose(jnp.asarray(x), M, jnp.asarray(mask & (TOKEN > 61)))
        assert exists.all()
        at = [
            np.flatnonzero((x == token).all(1)).item() for token in np.asarray(tokens)
        ]
        first = study.random_positions(jnp.asarray(mask), 1, seed)[0].item()
        firsts.add(first)
        assert at == paper.farthest(x, valid, M, first)
        alike = np.flatnonzero(mask & (TOKEN > 61))
        np.testing.assert_array_equal(few[: len(alike)], x[alike])
        assert not few[len(alike) :].any()
    assert len(firsts) > 2


def test_farthest_tokens_that_are_alike_are_each_chosen_once():
    tokens, exists = landmarks_by("farthest")(jnp.ones((5, 1)), 4, None)
    np.testing.assert_array_equal(tokens, np.ones((4, 1)))
    assert exists.all()
    _, exists = landmarks_by("farthest")(jnp.ones((3, 1)), 4, None)
    np.testing.assert_array_equal(exists, [True, True, True, False])


@pytest.mark.parametrize("choice", ["random", "farthest", "kmeans"])
def test_nystrom_uses_these_landmarks(choice):
    query, key, value = (normal(seed, S, H) for seed in range(3))
    if choice == "random":
        q, k = query[drawn(S)], key[drawn(S)]
    elif choice == "farthest":
        first = study.random_positions(jnp.ones(S, bool), 1, 0)[0].item()
        q, k = (x[paper.farthest(x, range(S), M, first)] for x in (query, key))
    else:
        q, k = (
            paper.lloyd(x, paper.segment_means(x, range(S), M), KMEANS_STEPS)
            for x in (query, key)
        )
    f, a, b = paper.kernels_of(q, k, query, key)
    expected = f @ (paper.pinv(a, 6) @ (b @ value))
    out = attend(query, key, value, landmarks=choice)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("inverse", "of"),
    [
        ("exact", functools.partial(np.linalg.pinv, rcond=1e-13)),
        ("identity", lambda a: np.eye(M)),
    ],
)
def test_nystrom_uses_these_inverses(inverse, of):
    query, key, value = (normal(seed, S, H, scale=2.0) for seed in range(3))
    q, k = (paper.segment_means(x, range(S), M) for x in (query, key))
    f, a, b = paper.kernels_of(q, k, query, key)
    expected = f @ (of(a) @ (b @ value))
    out = attend(query, key, value, pinv=inverse)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("choice", "inverse", "count"),
    [("random", "iterative", 4), ("farthest", "exact", M), ("kmeans", "identity", 71)],
)
def test_as_many_landmarks_as_valid_tokens_are_exact_attention(choice, inverse, count):
    mask = TOKEN % 17 == 3  # 4 valid tokens
    x = [normal(seed, S, H) for seed in range(3)]
    expected = paper.attention(*x, list(np.flatnonzero(mask)))[mask]
    out = attend(*x, mask, count, landmarks=choice, pinv=inverse)
    assert relative_error(out[mask], expected) <= TOLERANCE["float64"]
    twin = attend(*x, mask, 3, landmarks=choice)
    assert relative_error(twin[mask], expected) > 1e-2


@pytest.mark.parametrize(
    "options",
    [{"landmarks": "farthest"}, {"landmarks": "kmeans"}, {"pinv": "exact"}],
)
def test_gradients_are_those_of_differences(options):
    with jax.enable_x64(True):
        x = [y[None, :, None] for y in inputs(scale=2.0)]
        weights = jnp.asarray(normal(4, *x[0].shape))

        def total(*x):
            return (compiled("nystrom", num_landmarks=M, **options)(*x) * weights).sum()

        gradients = jax.grad(total, argnums=(0, 1, 2))(*x)
        for i, place in [(0, (0, 3, 0, 1)), (1, (0, 40, 0, 2)), (2, (0, 66, 0, 4))]:
            sides = [
                total(*x[:i], x[i].at[place].add(step), *x[i + 1 :])
                for step in (1e-5, -1e-5)
            ]
            expected = (sides[0] - sides[1]) / 2e-5
            error = relative_error(gradients[i][place], expected)
            assert error <= TOLERANCE["derivative"]


def test_gradient_of_the_exact_inverse_is_finite_where_landmarks_are_alike():
    """A of rank 1 in float32, and A of nothing but padding."""
    attention = compiled("nystrom", num_landmarks=M, pinv="exact")

    def loss(x, mask):
        return attention(x, x, x, None, mask).sum()

    for keep in (MASKS["padding"], np.zeros(S, bool)):
        x = jnp.ones((1, S, 1, H))
        gradient = jax.grad(loss)(x, jnp.asarray(keep)[None, None, None])
        assert np.isfinite(gradient).all()


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
def test_factors_and_rows_are_those_of_the_matrix_that_nystrom_applies(options):
    """Of self- and cross-attention, few landmarks and more than tokens, all masks."""
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
            given, at = {"num_landmarks": count, **options}, jnp.asarray([4, 0])
            factors = jax.jit(functools.partial(study.nystrom_factors, **given))(*x)
            rows = study.nystrom_rows(*x[:2], at, x[2], **given)
        f, z, b = map(np.asarray, factors)
        matrix, mine = f @ z @ b, mask if length == S else slice(None)
        found = matrix @ (value * mask[:, None])
        assert relative_error(found[mine], expected[mine]) <= TOLERANCE["float64"]
        assert not matrix[:, ~mask].any()
        assert relative_error(rows, matrix[np.array([4, 0])]) <= TOLERANCE["float64"]


def test_options_that_make_no_sense_are_refused():
    query, key, _ = inputs("float32")
    with pytest.raises(ValueError, match=r"landmarks.*'svd'"):
        study.nystrom_factors(query, key, num_landmarks=M, landmarks="svd")
    with pytest.raises(ValueError, match="num_landmarks must be at least 1"):
        study.nystrom_kernels(query, key, num_landmarks=0)


def test_padding_does_not_matter_under_another_default_generator():
    x = jnp.arange(1.0, S + 1)[:, None]
    with jax.default_prng_impl("rbg"):
        padded, _ = random_tokens(x, M, jnp.asarray(MASKS["holes"]), 3)
        alone, _ = random_tokens(x[MASKS["holes"]], M, None, 3)
    np.testing.assert_array_equal(padded, alone)


def test_kernels_are_those_of_the_paper_and_rows_of_all_tokens_softmax():
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask).tolist()
    with jax.enable_x64(True):
        query, key, _ = inputs()
        x = query, key, jnp.asarray(mask)
        f, a, b = map(np.asarray, study.nystrom_kernels(*x, num_landmarks=M))
        rows = study.nystrom_rows(*x[:2], slice(None), x[2], num_landmarks=S)
        exact = np.asarray(study.softmax_matrix(*x))
    q, k = np.asarray(query), np.asarray(key)
    expected = paper.kernels(q, k, valid, valid, valid, M)
    for found, other in zip((f[valid], a, b[:, valid]), expected, strict=True):
        other = other[valid] if len(other) == S else other
        assert relative_error(found, other) <= TOLERANCE["float64"]
    softmax = paper.softmax(q @ k[valid].T / np.sqrt(H))
    assert relative_error(exact[:, valid], softmax) <= TOLERANCE["float64"]
    assert relative_error(rows[np.array(valid)], exact[valid]) <= TOLERANCE["float64"]


def test_a_row_costs_no_matrix():
    long = 101
    x = [jnp.asarray(normal(i, long, H), "float32") for i in range(2)]
    mask = jnp.ones(long, bool)

    def row(query, key, mask):
        return study.nystrom_rows(query, key, jnp.zeros(1, int), mask, num_landmarks=M)

    assert not quadratic_shapes(long, long, row, *x, mask)
    assert quadratic_shapes(long, long, study.softmax_matrix, *x)


def test_standard_nystrom_samples_rows_and_columns_of_softmax():
    mask = MASKS["holes"]
    valid = np.flatnonzero(mask)
    at = valid[drawn(len(valid))]
    with jax.enable_x64(True):
        query, key, _ = inputs()
        x = query, key, jnp.asarray(mask)
        found = np.asarray(study.standard_nystrom(*x, num_landmarks=M))
        whole = np.asarray(study.standard_nystrom(*x, num_landmarks=S))
        s = np.asarray(study.softmax_matrix(*x))
    expected = s[:, at] @ np.linalg.pinv(s[np.ix_(at, at)]) @ s[at]
    assert relative_error(found[valid], expected[valid]) <= 1e-9  # cond of S[J, J]
    assert relative_error(found[at], s[at]) <= 1e-9  # what was sampled is exact
    assert relative_error(whole[valid], s[valid]) <= 1e-6
    assert relative_error(found[valid], s[valid]) > 1e-2
