"""The pictures show the matrices of the paper and of the standard method."""

import jax
import numpy as np
import pytest

from nystromformer.experiments.approximation.pictures import draw_matrices
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.landmarks import random_positions
from tests import paper

# The length of the sequence, the landmarks and the dimension of the head.
L = 13
M = 4
H = 5


@pytest.fixture(scope="module")
def head():
    """Query and key [L, H] of one head."""
    return np.random.default_rng(0).normal(size=(2, L, H))


@pytest.fixture(scope="module")
def figures(head):
    query, key = head[:, None, :, None]
    layer = AttentionInputs(query, key, value=key, mask=np.ones((1, L), bool))
    with jax.enable_x64(True):
        return draw_matrices([layer], counts=[M], pictured_count=M)


def matrices_of(figure):
    """Title -> matrix of each picture."""
    matrices = {}
    for axes in figure.axes:
        if axes.get_title():
            matrices[axes.get_title()] = np.asarray(axes.images[0].get_array())
    return matrices


def test_choices_end_with_landmarks_after_the_softmax(figures, head):
    query, key = head
    valid = list(range(L))
    tokens = random_positions(np.ones(L, bool), M, 0).tolist()
    exact_inverse = paper.standard_nystrom(query, key, valid, tokens, None)
    iterated = paper.standard_nystrom(query, key, valid, tokens, 6)

    matrices = matrices_of(figures["choices"])
    assert list(matrices)[-2:] == ["after\nsoftmax", "after,\niterated"]
    np.testing.assert_allclose(matrices["after\nsoftmax"], exact_inverse, atol=1e-8)
    np.testing.assert_allclose(matrices["after,\niterated"], iterated, atol=1e-8)
    assert abs(exact_inverse - iterated).max() > 0.01


def test_inverses_are_of_the_landmarks_over_their_largest_entries(figures, head):
    query, key = head
    valid = list(range(L))
    _, a, _ = paper.kernels(query, key, valid, valid, valid, M)
    matrices = matrices_of(figures["inverses"])
    assert list(matrices) == [
        "exact\ninverse",
        "2\niterations",
        "4\niterations",
        "6\niterations",
    ]
    for num_iters in (2, 4, 6):
        inverse = paper.pinv(a, num_iters)
        expected = inverse / abs(inverse).max()
        picture = matrices[f"{num_iters}\niterations"]
        np.testing.assert_allclose(picture, expected, atol=1e-8)
