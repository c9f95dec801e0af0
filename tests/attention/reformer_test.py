"""Reformer: the union of the buckets, whatever the length, and never padding."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.reformer import random_rotations
from tests.attention.cases import compile_one_head, make, normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def shared_and_value(length, scale=1.0):
    """Shared query and key [length, H], and value [length, H]."""
    return normal(0, length, H, scale=scale), normal(1, length, H, scale=scale)


def attend(query, key, value, mask, **options):
    """LSH attention of one sequence."""
    return one_head("reformer", query, key, value, mask, **options)


def rotations(num_hashes, num_axes, seed=0, num_heads=1):
    """The axes of all buckets, [num_heads, num_hashes, num_axes, H]."""
    shape = (num_heads, num_hashes, num_axes, H)
    return np.asarray(random_rotations(jax.random.key(seed), shape), float)


def bucket_of_each(key, valid, axes, bucket_size):
    """Token -> bucket in one round: the nearest of the axes and their opposites."""
    if len(valid) <= bucket_size:
        return dict.fromkeys(valid, 0)
    buckets = {}
    for i in valid:
        components = [axis @ key[i] for axis in axes]
        opposites = [-component for component in components]
        buckets[i] = int(np.argmax(components + opposites))
    return buckets


def chunks(bucket, bucket_size):
    """Token -> chunk: the tokens sorted by bucket, in groups of bucket_size."""
    ranked = sorted(bucket, key=lambda i: (bucket[i], i))
    return {i: rank // bucket_size for rank, i in enumerate(ranked)}


def neighbours(key, valid, bucket_size, num_hashes, lsh_scope="bucket"):
    """∪_r P_i^(r) of every valid i: sections 2 and A of the paper, in plain loops.

    A list for each, in which "chunk" names a token once for every round. The axes are
    those of `one_head`.
    """
    options = {"bucket_size": bucket_size, "num_hashes": num_hashes}
    [[axes_of_rounds]] = make("reformer", 1, H, 1024, **options).per_head(len(valid))
    neighbours_of = {i: [] for i in valid}
    for axes in np.asarray(axes_of_rounds, float):
        bucket = bucket_of_each(key, valid, axes, bucket_size)
        chunk = chunks(bucket, bucket_size)
        for i, j in itertools.product(valid, valid):
            is_near = chunk[j] in (chunk[i] - 1, chunk[i])
            is_new_in_bucket = bucket[i] == bucket[j] and j not in neighbours_of[i]
            if is_near and (is_new_in_bucket or lsh_scope == "chunk"):
                neighbours_of[i].append(j)
    return neighbours_of


def reference(query, key, value, neighbours_of):
    """Eq. (3): one softmax over the union, oneself only where there is nobody else."""
    unit_key = key / np.linalg.norm(key, axis=1, keepdims=True)
    out = np.zeros_like(value)
    for i, union in neighbours_of.items():
        tokens = [j for j in union if j != i] or [i]
        weights = [np.exp(query[i] @ unit_key[j]) for j in tokens]
        out[i] = np.average(value[tokens], axis=0, weights=weights)
    return out


@pytest.mark.parametrize(
    ("scale", "lsh_scope"),
    [(0.1, "bucket"), (1, "bucket"), (4, "bucket"), (1, "chunk")],
)
@pytest.mark.parametrize(
    ("length", "num_valid", "bucket_size", "num_hashes"),
    [
        (1, 1, 4, 2),
        (7, 5, 8, 1),
        (31, 31, 2, 3),
        (67, 67, 8, 1),
        (67, 41, 6, 2),
        (31, 8, 8, 2),  # The valid tokens fill one bucket.
        (31, 16, 8, 2),  # They fill two buckets; 15 tokens are padding.
    ],
)
def test_reformer_is_the_paper(
    length, num_valid, bucket_size, num_hashes, scale, lsh_scope
):
    shared, value = shared_and_value(length, scale)
    shuffled = np.random.default_rng(1).permutation(length)
    valid = sorted(shuffled[:num_valid].tolist())
    mask = np.isin(np.arange(length), valid)
    options = {
        "bucket_size": bucket_size,
        "num_hashes": num_hashes,
        "lsh_scope": lsh_scope,
    }
    actual = attend(shared, shared, value, mask, **options)
    neighbours_of = neighbours(shared, valid, **options)
    expected = reference(shared, shared, value, neighbours_of)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]


def test_reformer_hashes_keys_where_queries_differ():
    key, value = shared_and_value(67)
    query = np.random.default_rng(1).normal(size=(67, H))
    options = {"bucket_size": 8, "num_hashes": 2}
    actual = attend(query, key, value, np.ones(67, bool), **options)
    neighbours_of = neighbours(key, list(range(67)), **options)
    expected = reference(query, key, value, neighbours_of)
    assert relative_error(actual, expected) <= TOLERANCE["float64"]


def test_random_rotations_are_normal_and_independent():
    axes = np.stack([rotations(7, 31, seed, num_heads=3) for seed in (0, 1)])
    assert abs(axes.var() - 1) < 5 * np.sqrt(2 / axes.size)
    assert len(np.unique(axes)) > 0.99 * axes.size


def test_random_rotations_of_an_axis_are_those_of_every_length():
    error = relative_error(rotations(2, 3), rotations(2, 7)[:, :, :3])
    assert error <= TOLERANCE["same"]


def test_reformer_gradient_is_that_with_fixed_buckets():
    shared, value = shared_and_value(67)
    direction = np.random.default_rng(1).normal(size=shared.shape)
    with jax.enable_x64(True):
        attend_one_head = compile_one_head("reformer", bucket_size=8)

        def loss(step):
            x = jnp.asarray(shared + step * direction)[None, :, None]
            v = jnp.asarray(value)[None, :, None]
            return jnp.sin(attend_one_head(x, x, v)).sum()

        slope = jax.jit(jax.grad(loss))(0.0)
        difference = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert relative_error(slope, difference) <= TOLERANCE["derivative"]


def two_heads(rngs, **options):
    """An attention of two heads, and query, key and value that both heads share."""
    sizes = {"num_heads": 2, "head_dim": H, "max_length": 67}
    attention = make_attention("reformer", **sizes, rngs=rngs, bucket_size=8, **options)
    shared, value = (jnp.asarray(x, jnp.float32) for x in shared_and_value(67))
    inputs = [jnp.stack([x, x], axis=1)[None] for x in (shared, shared, value)]
    return attention, inputs


def test_reformer_has_hashes_of_its_own_in_each_head_and_attention():
    rngs = nnx.Rngs(0)
    first, inputs = two_heads(rngs)
    second, _ = two_heads(rngs)
    outputs = first(*inputs)
    assert not np.isclose(outputs[:, :, 0], outputs[:, :, 1]).all()
    assert not np.isclose(outputs, second(*inputs)).all()

    nnx.update(second, nnx.state(first))
    assert relative_error(second(*inputs), outputs) <= TOLERANCE["same"]


def test_reformer_redraws_its_hashes_by_the_key_of_a_training_pass():
    first, inputs = two_heads(nnx.Rngs(0), redraw_hashes=True)
    kept, _ = two_heads(nnx.Rngs(0))
    rngs = [jax.random.key(seed) for seed in (1, 2, 1)]
    outputs = [first(*inputs, dropout_rng=rng) for rng in rngs]
    assert relative_error(outputs[2], outputs[0]) <= TOLERANCE["same"]
    assert not np.isclose(outputs[0], outputs[1]).all()

    # Evaluation has the hashes that were drawn first, and so has training without the
    # option.
    expected = kept(*inputs)
    assert not np.isclose(outputs[0], expected).all()
    evaluated = first(*inputs, deterministic=True, dropout_rng=rngs[0])
    assert relative_error(evaluated, expected) <= TOLERANCE["same"]
    trained = kept(*inputs, dropout_rng=rngs[0])
    assert relative_error(trained, expected) <= TOLERANCE["same"]


def test_reformer_refuses_to_redraw_without_a_key():
    attention, inputs = two_heads(nnx.Rngs(0), redraw_hashes=True)
    with pytest.raises(ValueError, match="redraw_hashes=True needs a dropout_rng"):
        attention(*inputs)
