"""Landmarks that are squares, and the convolution over a picture, on 8 × 8 pixels."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer import factors
from nystromformer.attention import ATTENTIONS
from nystromformer.landmarks import LANDMARKS
from tests import paper
from tests.attention.cases import make, normal, one_head
from tests.tolerance import TOLERANCE, relative_error

SIDE = 8
S = SIDE**2
H = 5  # the size of a head
N = 2  # heads
M = 16  # landmarks: squares of 2 × 2 pixels
K = 3
ROW, COLUMN = np.divmod(np.arange(S), SIDE)
# The hole covers two squares, and a pixel or two of three others.
IS_HOLE = (ROW >= 3) & (ROW < 6) & (COLUMN >= 2) & (COLUMN < 5)
MASKS = {
    "all": ROW >= 0,
    "hole": ~IS_HOLE,
    "few": (ROW == 5) & (COLUMN > 0),  # They are fewer than M.
}
# [S]: the pixel that takes the place of each one in the transposed picture.
TRANSPOSED = np.arange(S).reshape(SIDE, SIDE).T.ravel()


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers what the example does, for this module alone."""
    from examples import square_landmarks  # noqa: F401

    yield
    del ATTENTIONS["nystrom_square"], LANDMARKS["squares"]


def squares(valid):
    """The valid pixels of each square that has any."""
    groups = []
    for top, left in itertools.product(range(0, SIDE, 2), repeat=2):
        pixels = [
            SIDE * row + column
            for row in (top, top + 1)
            for column in (left, left + 1)
            if SIDE * row + column in valid
        ]
        if pixels:
            groups.append(pixels)
    return groups


def numpy_attention(query, key, value, mask):
    """Eq. (13) with the means of squares."""
    valid = np.flatnonzero(mask).tolist()
    if len(valid) <= M:
        return paper.attention(query, key, value, valid)
    groups = squares(valid)
    query_landmarks, key_landmarks = (
        np.array([x[group].mean(0) for group in groups]) for x in (query, key)
    )
    f, a, b = paper.kernels_of(query_landmarks, key_landmarks, query, key[valid])
    return f @ (paper.pinv(a, 6) @ (b @ value[valid]))


@pytest.mark.parametrize("mask", MASKS)
def test_landmarks_are_the_means_of_squares(mask):
    query, key, value = normal(0, 3, S, H, scale=2.0)
    is_valid = MASKS[mask]
    out = one_head("nystrom_square", query, key, value, is_valid, num_landmarks=M)
    expected = numpy_attention(query, key, value, is_valid)
    error = relative_error(out[is_valid], expected[is_valid])
    assert error <= TOLERANCE["float64"]


@jax.jit
def apply_factors(query, key, value, mask):
    f, z, b = factors.nystrom_factors(
        query, key, mask, num_landmarks=M, landmarks="squares"
    )
    return f @ z @ b @ value


@pytest.mark.parametrize("mask", MASKS)
def test_factors_of_squares_are_those_of_the_attention(mask):
    query, key, value = normal(0, 3, S, H, scale=2.0)
    is_valid = MASKS[mask]
    with jax.enable_x64(True):
        out = apply_factors(query, key, np.where(is_valid[:, None], value, 0), is_valid)
    expected = numpy_attention(query, key, value, is_valid)
    error = relative_error(out[is_valid], expected[is_valid])
    assert error <= TOLERANCE["float64"]


def test_convolution_is_over_the_picture():
    from examples.square_landmarks import depthwise_conv_2d

    value = normal(0, S, H)
    kernel = normal(1, K, K)
    expected = np.zeros((SIDE, SIDE, H))
    padded = np.pad(value.reshape(SIDE, SIDE, H), ((1, 1), (1, 1), (0, 0)))
    for row, column, i, j in np.ndindex(SIDE, SIDE, K, K):
        expected[row, column] += kernel[i, j] * padded[row + i, column + j]
    with jax.enable_x64(True):
        out = jax.jit(depthwise_conv_2d)(value, kernel)
    assert relative_error(out, expected.reshape(S, H)) <= TOLERANCE["float64"]


def make_square(**options):
    """The attention of N heads with M landmarks."""
    return make("nystrom_square", max_length=S, num_landmarks=M, **options)


def random_pictures():
    """Query, key and value of three pictures, [3, S, N, H]."""
    return jnp.float32(normal(0, 3, 3, S, N, H))


def test_transposed_pictures_have_transposed_results():
    attention = make_square(conv_2d=K)
    mask = MASKS["hole"]
    pictures = random_pictures()
    expected = attention(*pictures, mask=mask[None, None, None])[:, TRANSPOSED]

    def attend_to_transposed(attention):
        mask_of_transposed = mask[TRANSPOSED][None, None, None]
        return attention(*pictures[:, :, TRANSPOSED], mask=mask_of_transposed)

    is_valid = mask[TRANSPOSED]
    untransposed = attend_to_transposed(attention)
    kernel = attention.conv_kernel[...].reshape(K, K, N)
    attention.conv_kernel[...] = kernel.swapaxes(0, 1).reshape(K * K, N)
    out = attend_to_transposed(attention)
    valid = expected[:, is_valid]
    assert relative_error(out[:, is_valid], valid) <= TOLERANCE["float32"]
    assert relative_error(untransposed[:, is_valid], valid) > 1e-2


@pytest.mark.parametrize("options", [{"conv_kernel_size": 5}, {"conv_2d": K}])
def test_padding_has_no_influence_and_no_gradient(options):
    attention = make_square(**options)
    nothing = np.zeros(S, bool)
    is_counted = np.array([MASKS["hole"], MASKS["few"], nothing])

    @jax.jit
    @jax.value_and_grad
    def loss(pictures):
        out = attention(*pictures, mask=is_counted[:, None, None])
        return jnp.where(is_counted[:, :, None, None], jnp.sin(out), 0).sum()

    dirty = jnp.where(is_counted[None, :, :, None, None], random_pictures(), jnp.nan)
    clean = jnp.nan_to_num(dirty)
    # Both are of one program, in which padding adds nothing but zeros.
    for result, expected in zip(loss(dirty), loss(clean), strict=True):
        np.testing.assert_array_equal(result, expected)
    _, gradient = loss(dirty)
    assert np.isfinite(gradient).all()
    assert not gradient[:, ~is_counted].any()
    assert gradient[:, is_counted].any(-1).all()


def test_bfloat16_is_near_float32_and_promoted_nowhere():
    attention = make_square(conv_2d=K)
    mask = MASKS["hole"]
    rounded = random_pictures().astype(jnp.bfloat16)
    with jax.numpy_dtype_promotion("strict"):
        out = attention(*rounded, mask=mask[None, None, None])
    assert out.dtype == jnp.bfloat16
    expected = attention(*rounded.astype(jnp.float32), mask=mask[None, None, None])
    error = relative_error(out[:, mask], expected[:, mask])
    assert error <= TOLERANCE["bfloat16"]


def test_segments_without_the_two_dimensions_are_the_librarys_nystrom():
    options = {"num_landmarks": M, "conv_kernel_size": 5}
    attention = make("nystrom", max_length=S, **options)
    same = make_square(landmarks="segment_means", conv_kernel_size=5)
    outputs = [attend(*random_pictures()) for attend in (attention, same)]
    assert relative_error(*outputs) <= TOLERANCE["same"]


@pytest.mark.parametrize(("length", "count"), [(64, 9), (64, 8), (60, 4)])
def test_lengths_that_make_no_squares_are_refused(length, count):
    with pytest.raises(ValueError, match=f"{count} landmarks do not divide {length}"):
        make("nystrom_square", max_length=length, num_landmarks=count)


def test_a_shorter_input_that_makes_no_squares_is_refused():
    pictures = random_pictures()[:, :, : S - 4]
    with pytest.raises(ValueError, match=f"{M} landmarks do not divide {S - 4}"):
        make_square()(*pictures)
