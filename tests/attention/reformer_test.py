"""Reformer: the union of the buckets, whatever the length, and never padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.reformer import random_rotations
from tests.attention.cases import compiled, normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def shared_and_value(length, scale=1.0):
    """Shared query and key [length, H], and value [length, H]."""
    return normal(0, length, H, scale=scale), normal(1, length, H, scale=scale)


def attend(query, key, value, mask, **options):
    """LSH attention of one sequence."""
    return one_head("reformer", query, key, value, mask, **options)


def rotations(num_hashes, num_axes, seed=0, num_heads=1):
    drawn = random_rotations(seed, (num_heads, num_hashes, num_axes, H))
    return np.asarray(drawn, float)


def bucket_of_each(key, valid, axes, bucket_size):
    """Token -> bucket in one round: the nearest of the axes and their opposites."""
    if len(valid) <= bucket_size:
        return dict.fromkeys(valid, 0)
    buckets = {}
    for i in valid:
        along = [axis @ key[i] for axis in axes]
        against = [-component for component in along]
        buckets[i] = int(np.argmax(along + against))
    return buckets


def neighbours(key, valid, bucket_size, num_hashes, seed=0, lsh_scope="bucket"):
    """∪_r P_i^(r) of every valid i: sections 2 and A of the paper, in plain loops.

    A list for each, in which "chunk" names a token once for every round.
    """
    num_axes = -(-len(valid) // bucket_size)
    seen_by = {i: [] for i in valid}
    for axes in rotations(num_hashes, num_axes, seed)[0]:
        bucket = bucket_of_each(key, valid, axes, bucket_size)
        ranked = sorted(valid, key=lambda i: (bucket[i], i))
        chunk = {i: rank // bucket_size for rank, i in enumerate(ranked)}
        for i in valid:
            for j in valid:
                is_near = chunk[j] in (chunk[i] - 1, chunk[i])
                is_new_in_bucket = bucket[i] == bucket[j] and j not in seen_by[i]
                if is_near and (is_new_in_bucket or lsh_scope == "chunk"):
                    seen_by[i].append(j)
    return seen_by


def reference(query, key, value, seen_by):
    """Eq. (3): one softmax over the union, oneself only where there is nobody else."""
    out = np.zeros_like(value)
    for i, seen in seen_by.items():
        others = [j for j in seen if j != i] or [i]
        weights = [np.exp(query[i] @ key[j] / np.linalg.norm(key[j])) for j in others]
        out[i] = np.average(value[others], axis=0, weights=weights)
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
        (31, 8, 8, 2),  # as many valid tokens as one bucket holds
        (31, 16, 8, 2),  # as many as two buckets hold, and more padding than that
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
    seen_by = neighbours(shared, valid, **options)
    expected = reference(shared, shared, value, seen_by)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]


def test_reformer_hashes_keys_where_queries_differ_by_its_seed():
    key, value = shared_and_value(67)
    query = np.random.default_rng(1).normal(size=(67, H))
    options = {"bucket_size": 8, "num_hashes": 2, "seed": 3}
    actual = attend(query, key, value, np.ones(67, bool), **options)
    seen_by = neighbours(key, list(range(67)), **options)
    expected = reference(query, key, value, seen_by)
    assert relative_error(actual, expected) <= TOLERANCE["float32"]


def test_random_rotations_are_normal_and_independent():
    drawn = np.concatenate([rotations(7, 31, seed, num_heads=3) for seed in (0, 1)])
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / drawn.size)
    assert len(np.unique(drawn)) > 0.99 * drawn.size


def test_random_rotations_of_an_axis_are_those_of_every_length():
    np.testing.assert_array_equal(rotations(2, 3), rotations(2, 7)[:, :, :3])


def test_reformer_gradient_is_that_with_fixed_buckets():
    shared, value = shared_and_value(67)
    direction = np.random.default_rng(1).normal(size=shared.shape)
    with jax.enable_x64(True):

        def loss(step):
            x = jnp.asarray(shared + step * direction)[None, :, None]
            v = jnp.asarray(value)[None, :, None]
            return jnp.sin(compiled("reformer", bucket_size=8)(x, x, v)).sum()

        slope = jax.jit(jax.grad(loss))(0.0)
        difference = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert relative_error(slope, difference) <= TOLERANCE["derivative"]
