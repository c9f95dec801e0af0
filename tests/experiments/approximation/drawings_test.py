"""Lines and pictures are those of the rows."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from nystromformer.experiments.approximation.drawings import (
    draw_errors,
    draw_pictures,
    draw_spectrum,
)


def rows(**changes):
    """Two examples of two heads of two layers: errors 1, 3, so medians are 2."""
    return pd.DataFrame(
        {"layer": layer, "head": head, "example": e, "error": 1.0 + 2 * e, **changes}
        for layer in (0, 1)
        for head in (0, 1)
        for e in (0, 1)
    )


def test_draw_errors_has_a_panel_a_head_and_a_line_of_medians_a_method():
    data = [
        rows(method=method, num_landmarks=count)
        for method in ("segment means", "performer")
        for count in (8, 4)
    ]
    axes = draw_errors(pd.concat(data), "num_landmarks").axes
    assert len(axes) == 4
    for panel in axes:
        labels = [line.get_label() for line in panel.lines]
        assert labels == ["segment means", "performer"]
        for line in panel.lines:
            assert list(line.get_xdata()) == [4, 8]
            assert list(line.get_ydata()) == [2, 2]


def test_draw_errors_has_a_legend_that_covers_no_panel():
    methods = [f"a method with a name of its own, {number}" for number in range(9)]
    data = pd.concat([rows(method=method, num_landmarks=4) for method in methods])
    figure = draw_errors(data, "num_landmarks")
    FigureCanvasAgg(figure).draw()
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    (legend,) = (legend for legend in legends if legend is not None)
    assert [text.get_text() for text in legend.get_texts()] == methods
    box = legend.get_window_extent()
    assert not [x for x in figure.axes if box.overlaps(x.get_tightbbox())]


def test_draw_errors_draws_some_of_many_heads():
    data = pd.DataFrame(
        {"layer": layer, "head": head, "method": "a", "num_landmarks": 4, "error": 1.0}
        for layer in range(12)
        for head in range(12)
    )
    figure = draw_errors(data, "num_landmarks")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"layer {i}, head {i}" for i in range(12)]
    assert max(figure.get_size_inches()) < 30


def test_draw_errors_has_a_dashed_line_for_rows_without_an_x():
    exact = rows(method="4 landmarks")
    exact["error"] *= 10
    both = pd.concat([rows(method="4 landmarks", num_pinv_iters=6), exact])
    iterated, dashed = draw_errors(both, "num_pinv_iters").axes[0].lines
    assert (*iterated.get_xdata(), *iterated.get_ydata()) == (6, 2)
    assert {*dashed.get_ydata()} == {20}


def spectra_rows(first_value):
    """Four singular values in every head of two examples, the first as said."""
    values = enumerate((first_value, 3.0, 1.0, 1.0), 1)
    return pd.concat([rows(index=i, singular_value=value) for i, value in values])


def test_draw_spectrum_adds_up_to_one():
    left, _, _ = draw_spectrum(spectra_rows(5.0)).axes
    *curves, quarter = left.lines
    assert len(curves) == 4
    for line in curves:
        found = np.array(line.get_ydata())[[0, 16, 32, 48, 64]]
        assert found == pytest.approx([0, 0.5, 0.8, 0.9, 1])
    assert set(quarter.get_xdata()) == {0.25}


def test_draw_spectrum_has_a_stroke_for_each_head_of_more_than_ten_layers():
    data = pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "example": 0,
            "index": index,
            "singular_value": 1 / index,
        }
        for layer in range(12)
        for head in range(2)
        for index in (1, 2)
    )
    left, _, _ = draw_spectrum(data).axes
    *curves, _ = left.lines
    assert [curve.get_linestyle() for curve in curves] == 12 * ["-", "--"]


def test_draw_spectrum_maps_the_quarter_of_the_ranks_by_layer_and_head():
    """The first of four singular values over their sum; the median of examples."""
    data = spectra_rows(5.0)
    is_flat = (data["layer"] == 1) & (data["head"] == 0)
    data.loc[is_flat, "singular_value"] = 1.0
    is_other = (data["layer"] == 0) & (data["head"] == 1) & (data["example"] == 0)
    data.loc[is_other & (data["index"] == 1), "singular_value"] = 15.0

    _, right, _ = draw_spectrum(data).axes
    expected = [[0.5, (0.5 + 0.75) / 2], [0.25, 0.5]]
    np.testing.assert_allclose(right.images[0].get_array(), expected)
    texts = {text.xy: text.get_text() for text in right.texts}  # head, layer
    assert texts == {(0, 0): "0.50", (1, 0): "0.62", (0, 1): "0.25", (1, 1): "0.50"}
    assert right.get_xlabel() == "head"
    assert right.get_ylabel() == "layer"


def test_draw_pictures_has_matrices_side_by_side_with_errors():
    one = np.eye(3)
    titled = {"exact": one, "4": 2 * one}, {"exact": 3 * one, "4": 3 * one.copy()}
    figure = draw_pictures({(0, n): x for n, x in enumerate(titled)})
    panels = figure.axes[:4]
    assert [panel.images[0].get_array()[0, 0] for panel in panels] == [1, 2, 3, 3]
    assert [panel.get_title() for panel in panels[:2]] == ["exact", "4"]
    assert [p.get_xlabel() for p in panels] == ["", "1", "", "0"]
