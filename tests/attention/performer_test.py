"""Performer against its features written out, and against its expectation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.performer import RandomProjection, draw_projection
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

# Batch, heads, the size of a head, features and tokens.
B = 2
N = 3
H = 5
R = 13
LENGTH = 13


def performer(query, key, value, *, projection, kernel="softmax", mask=None):
    """Attention with that projection, of any number of features."""

    @jax.jit
    def attend(projection, query, key, value):
        attention = make("performer", N, num_features=R, kernel=kernel)
        attention.projection = RandomProjection(projection)
        key_mask = None if mask is None else mask[:, None, None]
        return attention(query, key, value, mask=key_mask)

    with jax.enable_x64(np.asarray(query).dtype == "float64"):
        return attend(
            jnp.asarray(projection),
            jnp.asarray(query),
            jnp.asarray(key),
            jnp.asarray(value),
        )


def feature(x, projection):
    """φ of one vector, Lemma 1, without any stabiliser."""
    x = x / len(x) ** 0.25
    return np.exp(projection @ x - x @ x / 2)


def reference(query, key, value, mask, projection):
    """Eq. (4) of Choromanski et al., a weight φ(q)·φ(k) for every valid pair."""
    out = np.zeros(query.shape)
    for b, n in np.ndindex(B, N):
        valid_value = value[b, mask[b], n]
        key_features = [feature(k, projection) for k in key[b, mask[b], n]]
        for t, q in enumerate(query[b, :, n]):
            weights = np.array(key_features) @ feature(q, projection)
            out[b, t, n] = weights @ valid_value / weights.sum()
    return out


@pytest.mark.parametrize("num_queries", [LENGTH, 7])
def test_performer_is_the_paper(num_queries):
    """Of heads of very different scale, with a mask; also with T ≠ S."""
    position = np.arange(LENGTH)
    mask = np.array([position < 11, position % 3 != 1])
    scale = np.array([0.1, 1.0, 4.0])[:, None]
    query = normal(0, B, num_queries, N, H) * scale
    key = normal(1, B, LENGTH, N, H) * scale
    value = normal(2, B, LENGTH, N, H)
    projection = normal(3, R, H)
    out = performer(query, key, value, mask=mask, projection=projection)
    expected = reference(query, key, value, mask, projection)
    valid_queries = mask if num_queries == LENGTH else np.ones((B, num_queries), bool)
    for b, n in np.ndindex(B, N):
        rows = valid_queries[b]
        error = relative_error(out[b, rows, n], expected[b, rows, n])
        assert error <= TOLERANCE["float64"]


def test_performer_has_stabilisers_of_its_own_for_each_head_and_query():
    """In float32 features of long keys, or short queries, vanish beside the others."""
    query, key, value = np.float32(normal(0, 3, B, LENGTH, N, H))
    projection = np.float32(normal(3, R, H))
    long_key = key + 12
    mixed_key = key.copy()
    mixed_key[0, :, 0] = long_key[0, :, 0]
    out = performer(query, mixed_key, value, projection=projection)
    expected = performer(query, long_key, value, projection=projection)
    assert relative_error(out[0, :, 0], expected[0, :, 0]) <= TOLERANCE["same"]

    mixed_query = query.copy()
    mixed_query[:, 0] *= 100
    out = performer(mixed_query, key, value, projection=projection)
    expected = performer(query, key, value, projection=projection)
    assert relative_error(out[:, 1:], expected[:, 1:]) <= TOLERANCE["same"]


def published_feature(x, projection, largest_over):
    """The features of the published code: x is scaled twice, and ε is added."""
    x = x / np.sqrt(H)
    projected = x @ projection.T
    half_square = np.square(x).sum(-1, keepdims=True) / 2
    largest = projected.max(largest_over, keepdims=True)
    return np.exp(projected - half_square - largest) + 1e-4


def test_performer_published_kernel_scales_twice_and_counts_padding():
    """Examples and heads of different scale, whose keys have one largest feature."""
    mask = np.arange(LENGTH) < np.array([[9], [LENGTH]])
    scale = np.array([0.1, 1.0, 2.0])[:, None]
    query, key, value = normal(0, 3, B, LENGTH, N, H) * scale
    projection = normal(3, R, H)
    out = performer(
        query, key, value, projection=projection, kernel="published", mask=mask
    )

    is_valid = mask[:, :, None, None]
    query_features = published_feature(query, projection, largest_over=-1)
    key_features = published_feature(key * is_valid, projection, largest_over=None)
    weights = np.einsum("btnr,bsnr->bnts", query_features, key_features)
    # The sum has the weights of padding, too.
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bnts,bsnh->btnh", weights, value * is_valid)
    assert relative_error(out[mask], expected[mask]) <= TOLERANCE["float64"]


def test_performer_projection_has_no_gradient():
    query, key, value = np.float32(normal(0, 3, B, LENGTH, N, H))

    def total(projection):
        return performer(query, key, value, projection=projection).sum()

    assert not jax.grad(total)(jnp.float32(normal(3, R, H))).any()


@pytest.fixture(scope="module")
def projections():
    """4,001 draws [R, H]."""
    keys = jax.random.split(jax.random.key(0), 4001)
    draw = jax.vmap(lambda key: draw_projection(key, num_features=R, head_dim=H))
    return np.asarray(draw(keys), float)


def test_draw_projection_has_orthogonal_rows_in_each_block(projections):
    gram = projections @ projections.mT
    for first, last in ((0, 5), (5, 10), (10, 13)):
        products = gram[:, first:last, first:last]
        products_of_two_rows = products * (1 - np.eye(last - first))
        assert np.abs(products_of_two_rows).max() < 1e-4


def test_draw_projection_has_independent_blocks(projections):
    gram = projections @ projections.mT
    is_at_an_angle = np.abs(gram[:, 0, 5:]) > 1e-2
    assert is_at_an_angle.any(0).all()


def test_draw_projection_has_norms_of_gaussian_rows(projections):
    """|w|² is χ² with H degrees of freedom: mean H, variance 2H, row by row."""
    squares = np.square(projections).sum(-1).reshape(-1)
    error_of_mean = np.sqrt(2 * H / len(squares))
    error_of_variance = np.sqrt((48 * H + 8 * H * H) / len(squares))
    assert abs(squares.mean() - H) < 5 * error_of_mean
    assert abs(squares.var() - 2 * H) < 5 * error_of_variance


def test_draw_projection_has_uniform_directions(projections):
    """Each entry of a unit row has mean 0 and mean square 1/H."""
    first_block = projections[:, :H]
    unit = first_block / np.linalg.norm(first_block, axis=-1, keepdims=True)
    means = unit.mean(0)
    mean_squares = np.square(unit).mean(0)
    deviation = 5 / np.sqrt(len(unit))
    assert np.abs(means).max() < deviation / np.sqrt(H)
    assert np.abs(mean_squares - 1 / H).max() < deviation * 2 / H


def test_draw_projection_calls_no_lapack():
    program = jax.jit(lambda key: draw_projection(key, 17, 8))
    assert "custom_call" not in program.lower(jax.random.key(0)).as_text()


def make_performer(seed, **options):
    return make_attention(
        "performer",
        num_heads=N,
        head_dim=H,
        max_length=17,
        rngs=nnx.Rngs(seed),
        num_features=R,
        **options,
    )


SHORT_INPUTS = [jnp.float32(normal(seed, B, 7, N, H)) for seed in range(3)]


def test_performer_does_not_train_its_projection():
    assert not jax.tree.leaves(nnx.state(make_performer(0), nnx.Param))


def test_performer_keeps_its_projection_in_its_state():
    attention = make_performer(0)
    other = make_performer(1)
    assert not np.isclose(attention.projection[...], other.projection[...]).any()

    nnx.update(other, nnx.state(attention))
    out = attention(*SHORT_INPUTS)
    assert relative_error(out, other(*SHORT_INPUTS)) <= TOLERANCE["same"]


def test_performer_redraws_its_features_by_the_key_of_a_training_pass():
    attention = make_performer(0, redraw_features=True)
    first_projection = attention.projection[...]
    for seed in (1, 2, 1):
        rng = jax.random.key(seed)
        out = attention(*SHORT_INPUTS, dropout_rng=rng)
        expected = make_performer(0)
        expected.projection = RandomProjection(draw_projection(rng, R, H))
        assert relative_error(out, expected(*SHORT_INPUTS)) <= TOLERANCE["same"]
        assert not np.isclose(expected.projection[...], first_projection).any()
    np.testing.assert_array_equal(attention.projection[...], first_projection)


def test_performer_keeps_its_features_in_evaluation_or_without_the_option():
    first = make_performer(0)(*SHORT_INPUTS)
    rng = jax.random.key(1)
    redrawing = make_performer(0, redraw_features=True)
    for out in (
        redrawing(*SHORT_INPUTS, deterministic=True),
        redrawing(*SHORT_INPUTS, deterministic=True, dropout_rng=rng),
        make_performer(0)(*SHORT_INPUTS, dropout_rng=rng),
    ):
        assert relative_error(out, first) <= TOLERANCE["same"]
    assert not np.isclose(redrawing(*SHORT_INPUTS, dropout_rng=rng), first).all()


def test_performer_refuses_to_redraw_without_a_key():
    attention = make_performer(0, redraw_features=True)
    with pytest.raises(ValueError, match="redraw_features=True needs a dropout_rng"):
        attention(*SHORT_INPUTS)


def errors_of_one_and_of_mean(rngs):
    """Errors beside exact attention: of the first pass, and of the mean of all.

    The weights are a ratio of unbiased estimates: of small inputs its bias is small.
    """
    inputs = [0.3 * x for x in SHORT_INPUTS]
    attention = make_performer(0, redraw_features=True)
    outputs = jax.lax.map(lambda rng: attention(*inputs, dropout_rng=rng), rngs)
    expected = make("softmax", N, H)(*inputs)
    error_of_one = relative_error(outputs[0], expected)
    error_of_mean = relative_error(outputs.mean(0), expected)
    return error_of_one, error_of_mean


def test_performer_that_redraws_averages_to_softmax_attention():
    rngs = jax.random.split(jax.random.key(0), 400)
    error_of_one, error_of_mean = errors_of_one_and_of_mean(rngs)
    assert error_of_mean < error_of_one / 5


def test_performer_that_redraws_by_one_key_does_not_average():
    rngs = jnp.resize(jax.random.key(0), 400)
    error_of_one, error_of_mean = errors_of_one_and_of_mean(rngs)
    assert error_of_mean > error_of_one / 5
