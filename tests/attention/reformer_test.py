"""Reformer: the union of the buckets, whatever the length, and never padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.reformer import random_rotations
from tests.attention.cases import compiled, normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def inputs(length, scale=1.0):
    """Shared query and key, and value."""
    return [normal(i, length, H, scale=scale) for i in range(2)]


def attend(shared, value, mask, key=None, **options):
    """LSH attention of one sequence with shared queries and keys."""
    key = shared if key is None else key
    return one_head("reformer", shared, key, value, mask, **options)


def rotations(num_hashes, num_axes, seed=0, num_heads=1):
    drawn = random_rotations(seed, (num_heads, num_hashes, num_axes, H))
    return np.asarray(drawn, float)


def neighbours(key, valid, bucket_size, num_hashes, seed=0, lsh_scope="bucket"):
    """∪_r P_i^(r) of every valid i: sections 2 and A of the paper, in plain loops.

    A list for each, in which "chunk" names a token once for every round.
    """
    num_axes = -(-len(valid) // bucket_size)
    found = {i: [] for i in valid}
    for axes in rotations(num_hashes, num_axes, seed)[0]:
        bucket = {}
        for i in valid:
            along = [axis @ key[i] for axis in axes]
            bucket[i] = int(np.argmax(along + [-a for a in along]))
            if len(valid) <= bucket_size:
                bucket[i] = 0
        ranked = sorted(valid, key=lambda i: (bucket[i], i))
        chunk = {i: rank // bucket_size for rank, i in enumerate(ranked)}
        for i in valid:
            for j in valid:
                new = bucket[i] == bucket[j] and j not in found[i]
                near = chunk[j] in (chunk[i] - 1, chunk[i])
                if near and (new or lsh_scope == "chunk"):
                    found[i].append(j)
    return found


def reference(query, key, value, valid, found):
    """Eq. (3): one softmax over the union, oneself only where there is nobody else."""
    out = np.zeros_like(value)
    for i in valid:
        others = [j for j in found[i] if j != i] or [i]
        weights = [np.exp(query[i] @ key[j] / np.linalg.norm(key[j])) for j in others]
        out[i] = np.average(value[others], axis=0, weights=weights)
    return out


CASES = [(1, 1, 4, 2), (7, 5, 8, 1), (31, 31, 2, 3), (67, 67, 8, 1), (67, 41, 6, 2)]
CASES += [(31, 8, 8, 2)]  # as many valid tokens as one bucket holds
CASES += [(31, 16, 8, 2)]  # as many as two hold, in room for more


@pytest.mark.parametrize(
    ("scale", "lsh_scope"),
    [(0.1, "bucket"), (1, "bucket"), (4, "bucket"), (1, "chunk")],
)
@pytest.mark.parametrize(("length", "num_valid", "bucket_size", "num_hashes"), CASES)
def test_reformer_is_the_paper(
    length, num_valid, bucket_size, num_hashes, scale, lsh_scope
):
    shared, value = inputs(length, scale)
    valid = sorted(np.random.default_rng(1).permutation(length)[:num_valid].tolist())
    mask = np.isin(np.arange(length), valid)
    options = {"bucket_size": bucket_size, "num_hashes": num_hashes}
    options |= {"lsh_scope": lsh_scope}
    actual = attend(shared, value, mask, **options)
    found = neighbours(shared, valid, **options)
    expected = reference(shared, shared, value, valid, found)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]


def test_reformer_hashes_keys_where_queries_differ_by_its_seed():
    shared, value = inputs(67)
    query, everyone = np.random.default_rng(1).normal(size=(67, H)), list(range(67))
    options = {"bucket_size": 8, "num_hashes": 2, "seed": 3}
    actual = attend(query, value, np.ones(67, bool), key=shared, **options)
    found = neighbours(shared, everyone, **options)
    expected = reference(query, shared, value, everyone, found)
    assert relative_error(actual, expected) <= TOLERANCE["float32"]


def test_random_rotations_are_normal_and_independent():
    drawn = np.concatenate([rotations(7, 31, seed, num_heads=3) for seed in (0, 1)])
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / drawn.size)
    assert len(np.unique(drawn)) > 0.99 * drawn.size


def test_reformer_gradient_is_that_with_fixed_buckets():
    shared, value = inputs(67)
    direction = np.random.default_rng(1).normal(size=shared.shape)
    with jax.enable_x64(True):

        def loss(step):
            x = jnp.asarray(shared + step * direction)[None, :, None]
            v = jnp.asarray(value)[None, :, None]
            return jnp.sin(compiled("reformer", bucket_size=8)(x, x, v)).sum()

        slope = jax.jit(jax.grad(loss))(0.0)
        difference = (loss(1e-5) - loss(-1e-5)) / 2e-5
    assert relative_error(slope, difference) <= TOLERANCE["derivative"]
