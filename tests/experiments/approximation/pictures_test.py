"""The pictures show the matrices of the paper and of the standard method."""

import jax
import numpy as np
import pytest

from nystromformer.experiments.approximation.pictures import draw_matrices
from nystromformer.experiments.recorded_layers import Layer
from nystromformer.landmarks import random_positions
from tests import paper

L, M, H = 13, 4, 5


@pytest.fixture(scope="module")
def arrays():
    """Query and key [1, L, 1, H] of one head."""
    return np.random.default_rng(0).normal(size=(2, 1, L, 1, H))


@pytest.fixture(scope="module")
def figures(arrays):
    query, key = arrays
    layer = Layer(query, key, key, np.ones((1, L), bool))
    with jax.enable_x64(True):
        return draw_matrices([layer], [2, M], M)


def pictures(figure):
    """Title -> matrix."""
    panels = [axes for axes in figure.axes if axes.get_title()]
    return {axes.get_title(): np.asarray(axes.images[0].get_array()) for axes in panels}


def test_choices_end_with_landmarks_after_the_softmax(figures, arrays):
    query, key = (array[0, :, 0] for array in arrays)
    tokens = random_positions(np.ones(L, bool), M, 0).tolist()
    everyone = list(range(L))
    found = pictures(figures["choices"])
    assert list(found)[-2:] == ["after\nsoftmax", "after,\niterated"]
    for title, num_iters in (("after\nsoftmax", None), ("after,\niterated", 6)):
        expected = paper.standard_nystrom(query, key, everyone, tokens, num_iters)
        np.testing.assert_allclose(found[title], expected, atol=1e-8)
    assert abs(found["after\nsoftmax"] - found["after,\niterated"]).max() > 0.01


def test_inverses_are_of_the_landmarks_over_their_largest_entries(figures, arrays):
    query, key = (array[0, :, 0] for array in arrays)
    everyone = list(range(L))
    _, a, _ = paper.kernels(query, key, everyone, everyone, everyone, M)
    found = pictures(figures["inverses"])
    assert list(found) == ["exact\ninverse", *(f"{n}\niterations" for n in (2, 4, 6))]
    for n in (2, 4, 6):
        expected = paper.pinv(a, n)
        expected = expected / abs(expected).max()
        np.testing.assert_allclose(found[f"{n}\niterations"], expected, atol=1e-8)
