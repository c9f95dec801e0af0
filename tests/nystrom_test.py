"""The core against the paper in numpy, on one head of one sequence."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import nystrom as core
from nystromformer.pinv import iterative_pinv
from tests import paper
from tests.attention.cases import normal
from tests.tolerance import TOLERANCE, relative_error

SCALES = (0.1, 1.0, 4.0)
DTYPES = ("float32", "float64")


def masks(length):
    """All valid, prefix padding, holes, first token masked, a single token."""
    token = np.arange(length)
    return [
        np.ones(length, bool),
        token < -(-2 * length // 3),
        (token % 3 != 1) & (token % 5 != 4),
        token > 0,
        token == length // 2,
    ]


@functools.cache
def compile_on_numpy(function, dtype, **options):
    """The function in that dtype on numpy arrays, compiled once a shape."""
    jitted = jax.jit(functools.partial(function, **options))

    def as_jax(x):
        return jnp.asarray(x, bool if x.dtype == bool else dtype)

    def call(*args):
        with jax.enable_x64(dtype == "float64"):
            outputs = jitted(*[as_jax(x) for x in args])
            return jax.tree.map(np.asarray, outputs)

    return call


def check(actual, expected):
    assert relative_error(actual, expected) <= TOLERANCE[actual.dtype.name]


def nystrom(query, key, value, mask=None, **options):
    """The core's; as many queries as keys are the same tokens."""
    is_self_attention = len(query) == len(key)
    return core.nystrom(
        query,
        key,
        value,
        mask,
        query_mask=mask if is_self_attention else None,
        is_self_attention=is_self_attention,
        **options,
    )


def segment_means(x, mask=None, *, num_landmarks):
    return core.segment_means(x, num_landmarks, mask)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "num_landmarks"), [(13, 5), (67, 7), (7, 11)])
def test_segment_means_are_the_papers_over_valid_tokens(length, num_landmarks, dtype):
    function = compile_on_numpy(segment_means, dtype, num_landmarks=num_landmarks)
    for scale, mask in itertools.product(SCALES, masks(length)):
        x = normal(1, length, 3, scale=scale)
        valid = np.flatnonzero(mask).tolist()
        expected = paper.segment_means(x, valid, num_landmarks)
        expected_exists = np.arange(num_landmarks) < len(expected)
        means, exists = function(x, mask)
        assert means.dtype == dtype
        check(means[: len(expected)], expected)
        assert not means[len(expected) :].any()
        np.testing.assert_array_equal(exists, expected_exists)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "num_landmarks"), [(13, 5), (67, 7), (7, 11)])
def test_segment_means_without_a_mask_are_those_of_all_tokens(
    length, num_landmarks, dtype
):
    function = compile_on_numpy(segment_means, dtype, num_landmarks=num_landmarks)
    for scale in SCALES:
        x = normal(1, length, 3, scale=scale)
        expected = paper.segment_means(x, list(range(length)), num_landmarks)
        means, exists = function(x)
        assert means.dtype == dtype
        check(means[: len(expected)], expected)
        assert not means[len(expected) :].any()
        np.testing.assert_array_equal(exists, np.arange(num_landmarks) < length)


@pytest.mark.parametrize("dtype", DTYPES)
def test_iterative_pinv_iterates_as_the_paper_each_matrix_by_its_own_norms(dtype):
    scores = [normal(i, 7, 7, scale=scale) for i, scale in enumerate(SCALES)]
    matrices = np.stack([paper.softmax(x) for x in scores])
    for num_iters in (0, 1, 6):
        function = compile_on_numpy(iterative_pinv, dtype, num_iters=num_iters)
        inverses = function(matrices)
        assert inverses.dtype == dtype
        for inverse, matrix in zip(inverses, matrices, strict=True):
            check(inverse, paper.pinv(matrix, num_iters))
    # The norms of another matrix would show.
    largest_scale = max(paper.initial_scale(matrix) for matrix in matrices)
    inverse_by_largest_scale = paper.pinv(matrices[0], 6, largest_scale)
    assert relative_error(inverse_by_largest_scale, inverses[0]) > 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("queries", "keys", "num_landmarks"), [(13, 13, 5), (67, 67, 11), (31, 67, 7)]
)
def test_nystrom_is_the_paper_for_any_mask(queries, keys, num_landmarks, dtype):
    function = compile_on_numpy(nystrom, dtype, num_landmarks=num_landmarks)
    for scale, mask in itertools.product(SCALES, masks(keys)):
        q = normal(6, queries, 5, scale=scale)
        k = normal(7, keys, 5, scale=scale)
        v = normal(8, keys, 5, scale=scale)
        actual = function(q, k, v, mask)
        assert actual.dtype == dtype
        expected = paper.nystrom(q, k, v, mask, num_landmarks)
        rows = mask if queries == keys else slice(None)
        check(actual[rows], expected[rows])
    assert np.isfinite(function(q, k, v, np.zeros(keys, bool))).all()


@pytest.mark.parametrize(("length", "num_landmarks"), [(35, 5), (67, 7)])
def test_nystrom_without_a_mask_is_the_paper(length, num_landmarks):
    function = compile_on_numpy(nystrom, "float32", num_landmarks=num_landmarks)
    for scale in SCALES:
        q, k, v = normal(9, 3, length, 5, scale=scale)
        expected = paper.nystrom(q, k, v, np.ones(length, bool), num_landmarks)
        check(function(q, k, v), expected)


@pytest.mark.parametrize(
    ("queries", "keys", "valid", "num_landmarks"),
    [(31, 31, 11, 11), (31, 31, 7, 11), (31, 31, 29, 37), (17, 31, 11, 13)],
    ids=["M = n", "n < M < L", "M > L", "T ≠ S"],
)
def test_enough_landmarks_are_exact_attention(queries, keys, valid, num_landmarks):
    function = compile_on_numpy(nystrom, "float32", num_landmarks=num_landmarks)

    def rows_and_exact_rows(scale, mask):
        """The rows of valid queries, and those of exact attention."""
        q = normal(10, queries, 5, scale=scale)
        k = normal(11, keys, 5, scale=scale)
        v = normal(12, keys, 5, scale=scale)
        exact = paper.attention(q, k, v, np.flatnonzero(mask).tolist())
        rows = mask if queries == keys else slice(None)
        return function(q, k, v, mask)[rows], exact[rows]

    valid_keys = np.random.default_rng(0).permutation(keys)[:valid]
    mask = np.isin(np.arange(keys), valid_keys)
    for scale in SCALES:
        actual, exact = rows_and_exact_rows(scale, mask)
        check(actual, exact)
    if num_landmarks < keys:
        # One landmark too few is not exact.
        mask = np.arange(keys) < num_landmarks + 1
        actual, exact = rows_and_exact_rows(4.0, mask)
        assert relative_error(actual, exact) > 1e-3


def test_segment_means_of_an_accelerator_are_those_of_a_cpu(monkeypatch):
    def take_default(*args, default, **branches):
        return default(*args)

    x = normal(0, 67, 5)
    mask = masks(67)[2]
    function_of_cpu = compile_on_numpy(segment_means, "float32", num_landmarks=7)
    expected, expected_exists = function_of_cpu(x, mask)
    monkeypatch.setattr(jax.lax, "platform_dependent", take_default)
    means, exists = core.segment_means(jnp.float32(x), 7, jnp.asarray(mask))
    check(np.asarray(means), expected)
    np.testing.assert_array_equal(exists, expected_exists)


def test_segment_ids_of_a_long_sequence_fit_into_32_bits_or_raise():
    ids = core.segment_ids(jnp.ones(2**20, bool), 2048)
    np.testing.assert_array_equal(ids, np.arange(2**20) // 512)
    with pytest.raises(ValueError, match=r"2048 .*1048577 tokens.*at most 2047"):
        core.segment_ids(jnp.ones(2**20 + 1, bool), 2048)
