"""Landmarks and inverses for study: drawn at random, by k-means, LAPACK's, none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.landmarks import KMEANS_STEPS, kmeans, random_tokens
from nystromformer.nystrom import nystrom, segment_means
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

S, H, M = 67, 5, 7
TOKEN = np.arange(S)
MASKS = {"all": TOKEN >= 0, "padding": TOKEN < 41, "holes": (TOKEN % 3 != 1)}
STUDY = ("random", "kmeans")


def normal(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def inputs(dtype="float64", scale=1.0):
    return [jnp.asarray(normal(seed, S, H, scale=scale), dtype) for seed in range(3)]


def lloyd(x, means):
    """The textbook's k-means, a token and a cluster at a time."""
    for _ in range(KMEANS_STEPS):
        nearest = [np.argmin([((row - c) ** 2).sum() for c in means]) for row in x]
        clusters = [x[np.equal(nearest, m)] for m in range(len(means))]
        means = [
            c.mean(0) if len(c) else old for c, old in zip(clusters, means, strict=True)
        ]
    return np.array(means)


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
    draws = np.array([drawn(11, seed) for seed in range(300)])
    counts = np.bincount(draws.ravel(), minlength=11)
    expected = 300 * M / 11  # hypergeometric: each token is in or out of a draw
    deviation = np.sqrt(300 * M / 11 * (1 - M / 11))
    assert (np.abs(counts - expected) < 4.5 * deviation).all()
    assert len({tuple(d) for d in draws}) > 150  # of the 330 sets


def test_kmeans_is_lloyds_algorithm_from_the_segment_means():
    for scale, mask in zip((0.1, 1.0, 4.0), MASKS.values(), strict=True):
        x = normal(3, S, H, scale=scale)
        start = paper.segment_means(x, list(np.flatnonzero(mask)), M)
        expected = lloyd(x[mask], start)
        assert relative_error(start, expected) > 0.1
        with jax.enable_x64(True):
            kept = jnp.where(mask[:, None], x, 0)
            args = (jnp.asarray(start), jnp.ones(M, bool), jnp.asarray(mask))
            means = kmeans(kept, *args)
        assert relative_error(means, expected) <= TOLERANCE["float64"]


def test_a_cluster_without_tokens_keeps_its_mean():
    x = jnp.float32([[0.0], [1.0], [10.0], [11.0]])
    start = jnp.float32([[0.0], [500.0], [10.0]])
    means = kmeans(x, start, jnp.ones(3, bool), None)
    np.testing.assert_array_equal(means, [[0.5], [500.0], [10.5]])


def test_gradient_of_kmeans_is_that_of_means_with_fixed_members():
    x = normal(3, S, H)
    with jax.enable_x64(True):

        def loss(x):
            means = kmeans(x, segment_means(x, M)[0], jnp.ones(M, bool), None)
            return (means * weights).sum(), means

        weights = jnp.asarray(normal(4, M, H))
        (_, means), gradient = jax.value_and_grad(loss, has_aux=True)(jnp.asarray(x))
    # Nothing moves between clusters for a step this small, so differences see the same.
    step = 1e-5
    for place in [(0, 0), (31, 2), (66, 4)]:
        sides = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            start = paper.segment_means(moved, list(range(S)), M)
            sides.append((lloyd(moved, start) * np.asarray(weights)).sum())
        expected = (sides[0] - sides[1]) / (2 * step)
        assert relative_error(gradient[place], expected) <= TOLERANCE["derivative"]
    assert np.isfinite(means).all()


def from_landmarks(q, k, query, key, value, inverse):
    """Eq. (13) with given landmarks and inverse, in numpy."""
    scale = 1 / np.sqrt(H)
    f, a = paper.softmax(query @ k.T * scale), paper.softmax(q @ k.T * scale)
    return f @ (inverse(a) @ (paper.softmax(q @ key.T * scale) @ value))


@pytest.mark.parametrize("choice", STUDY)
def test_nystrom_uses_these_landmarks(choice):
    with jax.enable_x64(True):
        query, key, value = inputs()
        out = nystrom(query, key, value, num_landmarks=M, landmarks=choice)
    query, key, value = map(np.asarray, (query, key, value))
    if choice == "random":
        q, k = query[drawn(S)], key[drawn(S)]
    else:
        q, k = (lloyd(x, paper.segment_means(x, range(S), M)) for x in (query, key))
    iterate = functools.partial(paper.pinv, num_iters=6)
    expected = from_landmarks(q, k, query, key, value, iterate)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize(
    ("inverse", "of"),
    [
        ("exact", functools.partial(np.linalg.pinv, rcond=1e-13)),
        ("none", lambda a: np.eye(M)),
    ],
)
def test_nystrom_uses_these_inverses(inverse, of):
    with jax.enable_x64(True):
        query, key, value = inputs(scale=2.0)
        out = nystrom(query, key, value, num_landmarks=M, inverse=inverse)
    query, key, value = map(np.asarray, (query, key, value))
    q, k = (paper.segment_means(x, range(S), M) for x in (query, key))
    expected = from_landmarks(q, k, query, key, value, of)
    assert relative_error(out, expected) <= TOLERANCE["float64"]


@pytest.mark.parametrize("choice", ["segment_means", *STUDY])
@pytest.mark.parametrize("inverse", ["iterative", "exact", "none"])
def test_as_many_landmarks_as_valid_tokens_are_exact_attention(choice, inverse):
    mask = jnp.asarray(TOKEN % 17 == 3)  # 4 valid tokens
    x = inputs("float32")
    valid = list(np.flatnonzero(mask))
    expected = paper.attention(*map(np.asarray, x), valid)[valid]
    for num_landmarks in (4, M, 71):
        options = {"landmarks": choice, "inverse": inverse}
        out = nystrom(*x, mask, num_landmarks=num_landmarks, **options)
        assert relative_error(out[mask], expected) <= TOLERANCE["float32"]
        twin = nystrom(*x, num_landmarks=3, **options)
        assert relative_error(twin[mask], expected) > 1e-2


@pytest.mark.parametrize(
    "options", [{"landmarks": c} for c in STUDY] + [{"inverse": "exact"}]
)
def test_neither_padding_nor_other_sequences_matter(options):
    attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=M, **options))
    x = [jnp.float32(normal(seed, 3, S, 2, H)) for seed in range(3)]
    mask = TOKEN[None] < np.array([[67], [41], [23]])
    keep = mask[:, :, None, None]
    together = attend(*x, None, mask[:, None, None])
    garbage = [jnp.where(keep, y, jnp.nan) for y in x]
    dirty = attend(*garbage, None, mask[:, None, None])
    assert np.isfinite(dirty).all()
    np.testing.assert_array_equal(dirty[mask], together[mask])
    for b, length in enumerate([67, 41, 23]):
        alone = attend(*(y[b : b + 1, :length] for y in x))
        error = relative_error(together[b, :length], alone[0])
        assert error <= TOLERANCE["float32"]


def test_padding_does_not_matter_under_another_default_generator():
    x = jnp.arange(1.0, S + 1)[:, None]
    with jax.default_prng_impl("rbg"):
        padded, _ = random_tokens(x, M, jnp.asarray(MASKS["holes"]), 3)
        alone, _ = random_tokens(x[MASKS["holes"]], M, None, 3)
    np.testing.assert_array_equal(padded, alone)


@pytest.mark.parametrize(
    "options", [{"landmarks": c} for c in STUDY] + [{"inverse": "exact"}]
)
def test_gradients_are_those_of_differences(options):
    with jax.enable_x64(True):
        x = inputs(scale=2.0)
        attend = jax.jit(functools.partial(nystrom, num_landmarks=M, **options))
        out, pullback = jax.vjp(attend, *x)
        weights = jnp.asarray(normal(4, *out.shape))
        gradients = pullback(weights)
        for i, place in [(0, (3, 1)), (1, (40, 2)), (2, (66, 4))]:
            sides = []
            for step in (1e-5, -1e-5):
                moved = [*x]
                moved[i] = x[i].at[place].add(step)
                sides.append((attend(*moved) * weights).sum())
            expected = (sides[0] - sides[1]) / 2e-5
            error = relative_error(gradients[i][place], expected)
            assert error <= TOLERANCE["derivative"]


def test_gradient_of_the_exact_inverse_is_finite_where_landmarks_are_alike():
    """A of rank 1 in float32, and A of nothing but padding."""
    constant = jnp.ones((S, H))
    mask = jnp.asarray(MASKS["padding"])

    def loss(x, mask):
        return nystrom(x, x, x, mask, num_landmarks=M, inverse="exact").sum()

    for keep in (mask, jnp.zeros(S, bool)):
        assert np.isfinite(jax.grad(loss)(constant, keep)).all()


@pytest.mark.parametrize(
    "options",
    [
        {"landmarks": "random", "landmark_seed": 5},
        {"landmarks": "kmeans"},
        {"inverse": "exact"},
        {"inverse": "none"},
    ],
)
def test_the_module_passes_its_options_on(options):
    given = {"num_heads": 2, "head_dim": H, "max_length": S, "rngs": nnx.Rngs(0)}
    attention = make_attention("nystrom", num_landmarks=M, **given, **options)
    x = [jnp.float32(normal(seed, 1, S, 2, H)) for seed in range(3)]
    expected = nystrom_attention(*x, num_landmarks=M, **options)
    assert relative_error(attention(*x), expected) <= TOLERANCE["same"]
    without_last = dict(list(options.items())[:-1])
    other = nystrom_attention(*x, num_landmarks=M, **without_last)
    assert relative_error(other, expected) > 1e-2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"landmarks": "means"}, "landmarks.*segment_means.*random.*kmeans.*'means'"),
        ({"inverse": "svd"}, "inverse.*iterative.*exact.*none.*'svd'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, text):
    x = jnp.ones((1, S, 2, H))
    with pytest.raises(ValueError, match=text):
        nystrom_attention(x, x, x, **options)
