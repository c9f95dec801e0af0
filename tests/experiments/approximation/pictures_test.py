"""The pictures show the numbers of their rows, and the matrices of the paper."""

import itertools

import jax
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from nystromformer.experiments.approximation.pictures import (
    draw_errors,
    draw_matrices,
    draw_pictures,
    draw_spectrum,
)
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


def make_rows(**columns):
    """The errors 1 and 3 of two examples, in two heads of two layers: medians are 2."""
    rows = []
    for layer, head, example in itertools.product((0, 1), (0, 1), (0, 1)):
        row = {"layer": layer, "head": head, "example": example}
        rows.append({**row, "error": 1.0 + 2 * example, **columns})
    return pd.DataFrame(rows)


def test_draw_errors_has_a_panel_a_head_and_a_line_of_medians_a_method():
    tables = [
        make_rows(method="segment means", num_landmarks=8),
        make_rows(method="segment means", num_landmarks=4),
        make_rows(method="performer", num_landmarks=8),
        make_rows(method="performer", num_landmarks=4),
    ]
    panels = draw_errors(pd.concat(tables), "num_landmarks").axes
    assert len(panels) == 4
    for panel in panels:
        labels = [line.get_label() for line in panel.lines]
        assert labels == ["segment means", "performer"]
        for line in panel.lines:
            assert list(line.get_xdata()) == [4, 8]
            assert list(line.get_ydata()) == [2, 2]


def test_draw_errors_has_a_legend_that_covers_no_panel():
    methods = [f"a method with a name of its own, {number}" for number in range(9)]
    tables = [make_rows(method=method, num_landmarks=4) for method in methods]
    figure = draw_errors(pd.concat(tables), "num_landmarks")
    FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == methods
    box = legend.get_window_extent()
    for axes in figure.axes:
        assert axes.get_legend() is None
        assert not box.overlaps(axes.get_tightbbox())


def test_draw_errors_draws_some_of_many_heads():
    data = pd.DataFrame(
        {"layer": layer, "head": head, "method": "a", "num_landmarks": 4, "error": 1.0}
        for layer in range(12)
        for head in range(12)
    )
    figure = draw_errors(data, "num_landmarks")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"layer {number}, head {number}" for number in range(12)]
    assert max(figure.get_size_inches()) < 30


def test_draw_errors_has_a_dashed_line_for_rows_without_an_x():
    iterated = make_rows(method="4 landmarks", num_pinv_iters=6)
    exact = make_rows(method="4 landmarks")
    exact["error"] *= 10
    # A third example has the error of the second: 30 is the median, and not the mean.
    exact = pd.concat([exact, exact[exact["example"] == 1]])
    figure = draw_errors(pd.concat([iterated, exact]), "num_pinv_iters")
    iterated_line, exact_line = figure.axes[0].lines
    assert list(iterated_line.get_xdata()) == [6]
    assert list(iterated_line.get_ydata()) == [2]
    assert set(exact_line.get_ydata()) == {30}
    assert exact_line.get_linestyle() == "--"


def spectra_rows():
    """The singular values 5, 3, 1 and 1, in every head of two examples."""
    tables = []
    for index, value in enumerate((5.0, 3.0, 1.0, 1.0), 1):
        tables.append(make_rows(index=index, singular_value=value))
    return pd.concat(tables)


def test_draw_spectrum_adds_up_to_one():
    left, _, _ = draw_spectrum(spectra_rows()).axes
    *curves, quarter_line = left.lines
    assert len(curves) == 4
    for curve in curves:
        shares = np.array(curve.get_ydata())[[0, 16, 32, 48, 64]]
        assert shares == pytest.approx([0, 0.5, 0.8, 0.9, 1])
    assert set(quarter_line.get_xdata()) == {0.25}


def test_draw_spectrum_has_a_stroke_for_each_head_of_more_than_ten_layers():
    rows = []
    for layer, head, index in itertools.product(range(12), range(2), (1, 2)):
        rows.append(
            {
                "layer": layer,
                "head": head,
                "example": 0,
                "index": index,
                "singular_value": 1 / index,
            }
        )
    left, _, _ = draw_spectrum(pd.DataFrame(rows)).axes
    *curves, _ = left.lines
    assert [curve.get_linestyle() for curve in curves] == 12 * ["-", "--"]


def test_draw_spectrum_maps_the_quarter_of_the_ranks_by_layer_and_head():
    """It is the first of four singular values over their sum, the median of examples.

    All values of one head are 1, and another head has a first value of 15 once.
    """
    data = spectra_rows()
    is_flat = (data["layer"] == 1) & (data["head"] == 0)
    data.loc[is_flat, "singular_value"] = 1.0
    is_steep = (data["layer"] == 0) & (data["head"] == 1) & (data["example"] == 0)
    data.loc[is_steep & (data["index"] == 1), "singular_value"] = 15.0

    _, right, _ = draw_spectrum(data).axes
    expected = [[0.5, (0.5 + 0.75) / 2], [0.25, 0.5]]
    np.testing.assert_allclose(right.images[0].get_array(), expected)
    # A text is at its head and layer.
    texts = {text.xy: text.get_text() for text in right.texts}
    assert texts == {(0, 0): "0.50", (1, 0): "0.62", (0, 1): "0.25", (1, 1): "0.50"}
    assert right.get_xlabel() == "head"
    assert right.get_ylabel() == "layer"


def test_draw_pictures_has_matrices_side_by_side_with_errors():
    identity = np.eye(3)
    pictures = {
        (0, 0): {"exact": identity, "4": 2 * identity},
        (0, 1): {"exact": 3 * identity, "4": 3 * identity},
    }
    panels = draw_pictures(pictures).axes[:4]
    assert [panel.images[0].get_array()[0, 0] for panel in panels] == [1, 2, 3, 3]
    assert [panel.get_title() for panel in panels[:2]] == ["exact", "4"]
    assert [panel.get_xlabel() for panel in panels] == ["", "1", "", "0"]
