"""Figures of rows made by hand."""

import dataclasses
import itertools

import pytest

from nystromformer.experiments.plotting import attention_styles
from nystromformer.experiments.speed.figures import (
    draw_curves,
    draw_landmarks,
    draw_summary,
)
from tests.experiments.speed.conftest import PASSES, landmark_rows, make_row


def test_draw_landmarks_has_a_line_a_length_with_and_without_the_convolution():
    rows = [*landmark_rows(16), *landmark_rows(64), *landmark_rows(32)]
    rows.append(make_row("linear", 512, options={}))
    figure = draw_landmarks(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == [
            "nystrom, 512 tokens",
            "nystrom, 2,048 tokens",
            "nystrom + convolution of 35, 512 tokens",
            "nystrom + convolution of 35, 2,048 tokens",
        ]
        for line in axes.lines:
            # 3 milliseconds or MiB, times the number of landmarks.
            assert list(line.get_xdata()) == [16, 32, 64]
            assert list(line.get_ydata()) == [48, 96, 192]
    assert len(draw_landmarks(rows, has_time=False).axes) == 2


def test_draw_landmarks_draws_nothing_of_one_number_of_landmarks():
    assert draw_landmarks(landmark_rows(16)) is None


def test_draw_curves_has_a_line_an_attention_in_each_panel():
    names = ["nystrom-32", "linear", "hf-nystrom-64"]
    rows = []
    for name, length, what in itertools.product(names, (64, 128), PASSES):
        rows.append(make_row(name, length, what))
    figure = draw_curves(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == names
        assert list(axes.lines[0].get_xdata()) == [64, 128]
        assert list(axes.lines[0].get_ydata()) == [3, 3]
        assert [text.get_text() for text in axes.texts] == names
        styles = attention_styles(names)
        assert [x.get_color() for x in axes.lines] == [
            styles[name]["color"] for name in names
        ]


def test_draw_summary_has_five_lines_of_time_and_of_memory():
    names = ["softmax_all_scores", "softmax", "nystrom-64", "linear", "identity"]
    rows = []
    for name, length in itertools.product(names, (64, 128)):
        rows.append(make_row(name, length, "forward+backward"))
    assert draw_summary(rows[:-4]) is None  # without linear
    torch_rows = [make_row("torch-softmax", n, "forward+backward") for n in (64, 128)]
    rows += [dataclasses.replace(x, peak_bytes=None) for x in torch_rows]
    time, memory = draw_summary(rows).axes
    exact = ["exact, at once", "exact, in blocks"]
    others = ["nystrom-64", "linear"]
    assert [text.get_text() for text in memory.texts] == exact + others
    assert {text.get_text() for text in time.texts} == {
        *exact,
        *others,
        "exact, PyTorch",
    }
    assert len({line.get_color() for line in time.lines}) == 3


def tick_labels(axes):
    """The labels beside the visible part of the vertical axis."""
    low, high = axes.get_ylim()
    labels = []
    for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        if low <= place <= high and label.get_text():
            labels.append(label.get_text())
    return labels


@pytest.mark.parametrize("factor", [1.3, 8, 90, 900, 1e5])
def test_draw_curves_has_ticks_with_numbers_whatever_the_range(factor):
    rows = []
    for what in PASSES:
        rows.append(make_row("linear", 128, what))
        rows.append(make_row("linear", 512, what, scale=factor))
    figure = draw_curves(rows)
    figure.canvas.draw()
    for axes in figure.axes:
        assert 2 <= len(tick_labels(axes)) <= 12, tick_labels(axes)
