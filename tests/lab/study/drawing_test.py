"""Lines and pictures are those of the rows."""

import numpy as np

from nystromformer.lab.study import drawing


def rows(**changes):
    """Two examples of two heads of two layers: errors 1, 3, so medians are 2."""
    return [
        {"layer": layer, "head": head, "example": e, "error": 1.0 + 2 * e, **changes}
        for layer in (0, 1)
        for head in (0, 1)
        for e in (0, 1)
    ]


def test_a_panel_for_each_head_with_a_line_of_medians_for_each_choice():
    data = [
        row
        for choice in ("segment_means", "random")
        for count in (8, 4)
        for row in rows(landmarks=choice, num_landmarks=count)
    ]
    axes = drawing.draw_landmarks(data).axes
    assert [a.get_title() for a in axes] == [
        *("layer 0, head 0", "layer 0, head 1", "layer 1, head 0", "layer 1, head 1")
    ]
    for panel in axes:
        assert [line.get_label() for line in panel.lines] == ["segment_means", "random"]
        for line in panel.lines:
            assert list(line.get_xdata()) == [4, 8]
            assert list(line.get_ydata()) == [2, 2]


def test_the_exact_inverse_is_a_line_of_its_own():
    data = rows(num_landmarks=4, inverse="iterative", num_pinv_iters=6)
    data += rows(num_landmarks=4, inverse="exact", num_pinv_iters=0)
    for row in data[-8:]:
        row["error"] *= 10
    panel = drawing.draw_iterations(data).axes[0]
    iterated, exact, _ = panel.lines
    assert list(iterated.get_xdata()) == [6]
    assert list(iterated.get_ydata()) == [2]
    assert set(exact.get_ydata()) == {20}


def test_every_point_of_the_bound_is_drawn():
    first, second = drawing.draw_bound(rows(num_landmarks=4, bound=9.0)).axes
    for panel in (first, second):
        [points] = panel.collections
        expected = [[9, 1], [9, 3]] * 2
        assert points.get_offsets().tolist() == expected


def test_the_spectrum_has_a_line_for_each_head():
    data = [{**row, "singular_value": 1 / i} for i in (1, 2) for row in rows(index=i)]
    panels = drawing.draw_spectrum(data).axes
    assert [len(panel.lines) for panel in panels] == [2, 2]
    assert list(panels[0].lines[0].get_ydata()) == [1, 0.5]


def test_matrices_stand_side_by_side_with_their_errors():
    pictures = [[np.full((3, 3), i + j) for j in range(2)] for i in range(4)]
    data = [row for row in rows(num_landmarks=4) if row["example"] == 0]
    axes = drawing.draw_matrices(pictures, data, ["exact", "4"]).axes
    shown = [panel.images[0].get_array()[0, 0] for panel in axes]
    assert shown == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [panel.get_title() for panel in axes[:2]] == ["exact", "4"]
    assert [panel.get_xlabel() for panel in axes[:2]] == ["", "error 1.00"]
    assert axes[2].get_ylabel() == "layer 0, head 1"
