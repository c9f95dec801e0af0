"""Lines and pictures are those of the rows."""

import numpy as np
import pandas as pd
import pytest

from nystromformer.experiments.study import drawing


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
    axes = drawing.draw_errors(pd.concat(data), "num_landmarks").axes
    assert len(axes) == 4
    for panel in axes:
        labels = [line.get_label() for line in panel.lines]
        assert labels == ["segment means", "performer"]
        for line in panel.lines:
            assert list(line.get_xdata()) == [4, 8]
            assert list(line.get_ydata()) == [2, 2]


def test_draw_errors_has_a_dashed_line_for_rows_without_an_x():
    exact = rows(method="4 landmarks")
    exact["error"] *= 10
    both = pd.concat([rows(method="4 landmarks", num_pinv_iters=6), exact])
    iterated, dashed = drawing.draw_errors(both, "num_pinv_iters").axes[0].lines
    assert (*iterated.get_xdata(), *iterated.get_ydata()) == (6, 2)
    assert {*dashed.get_ydata()} == {20}


def test_draw_spectrum_adds_up_to_one():
    values = (5.0, 3.0, 1.0, 1.0)
    data = [
        {**row, "index": i, "singular_value": value * (1 + row["head"] * (i == 1))}
        for row in rows().to_dict("records")
        for i, value in enumerate(values, 1)
    ]
    lines = drawing.draw_spectrum(pd.DataFrame(data)).axes[0].lines
    first, second, *_ = (np.array(line.get_ydata()) for line in lines)
    assert first[[0, 16, 32, 48, 64]] == pytest.approx([0, 0.5, 0.8, 0.9, 1])
    assert second[16] == pytest.approx(10 / 15)


def test_draw_pictures_has_matrices_side_by_side_with_errors():
    one = np.eye(3)
    pictures = {
        (0, 0): {"exact": one, "4": 2 * one},
        (0, 1): {"exact": 3 * one, "4": 3 * one.copy()},
    }
    panels = drawing.draw_pictures(pictures).axes[:4]
    assert [panel.images[0].get_array()[0, 0] for panel in panels] == [1, 2, 3, 3]
    assert [panel.get_title() for panel in panels[:2]] == ["exact", "4"]
    assert [p.get_xlabel() for p in panels] == ["", "1", "", "0"]
