"""The common style of figures: lines told apart, legends that fit, equal bytes."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from PIL import Image

from nystromformer.experiments.plotting import (
    ATTENTION_COLORS,
    HEIGHT,
    add_legend,
    attention_in_label,
    attention_styles,
    name_lines,
    new_figure,
    save_figure,
    set_value_ticks,
)
from tests.small import BUILT_IN_ATTENTIONS


def figure_of(*labels, columns=1):
    """A figure whose panels have a line for each label."""
    figure = new_figure(columns=columns)
    for axes in figure.axes:
        for index, label in enumerate(labels):
            axes.plot([1, 2], [1, 1 + index], label=label)
    return figure


def test_every_attention_has_a_colour_of_its_own():
    assert set(ATTENTION_COLORS) == set(BUILT_IN_ATTENTIONS)
    assert len(set(ATTENTION_COLORS.values())) == len(BUILT_IN_ATTENTIONS)


def test_attention_styles_gives_an_attention_its_colour_beside_any_other():
    alone = attention_styles(["nystrom-64"])["nystrom-64"]
    labels = ["my_own", "softmax", "torch-softmax", "nystrom-64", "nystrom, fused"]
    styles = attention_styles(labels)
    assert alone == styles["nystrom-64"]
    assert alone["color"] == to_rgb(ATTENTION_COLORS["nystrom"])
    assert styles["torch-softmax"]["color"] == styles["softmax"]["color"]
    assert styles["my_own"]["color"] not in [styles[x]["color"] for x in labels[1:]]


@pytest.mark.parametrize(
    ("label", "attention"),
    [
        ("nystrom-64 + convolution of 35, bfloat16", "nystrom"),
        ("quick, nystrom, 16 landmarks", "nystrom"),
        ("hf-nystrom-64", "nystrom"),
        ("softmax_all_scores", "softmax"),
        ("double softmax", "double softmax"),
        ("FlashNystrom-64", "FlashNystrom-64"),
    ],
)
def test_attention_in_label_reads_labels(label, attention):
    assert attention_in_label(label) == attention


def test_attention_styles_tells_lines_of_one_attention_apart():
    labels = [f"nystrom-{count}" for count in range(10)]
    styles = {tuple(style.values()) for style in attention_styles(labels).values()}
    assert len(styles) == 10


def test_name_lines_writes_each_name_at_its_line_and_none_over_another():
    figure = new_figure()
    axes = figure.axes[0]
    ends = {"high": 10, "low": 1, "low too": 1.01, "lowest": 0.99}
    for label, end in ends.items():
        axes.plot([1, 2], [5, end], label=label)
    axes.plot([1, 2], [3, 3])  # without a name
    name_lines(axes)
    figure.draw_without_rendering()  # places the panel
    assert [text.get_text() for text in axes.texts] == list(ends)
    # An annotation's own extent includes the line to its name.
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    for index, box in enumerate(boxes):
        assert box.x0 > axes.get_window_extent().x1
        assert not any(box.overlaps(other) for other in boxes[:index])
    middles = {
        text.get_text(): box.y0 for text, box in zip(axes.texts, boxes, strict=True)
    }
    assert middles["high"] > middles["low too"] > middles["low"] > middles["lowest"]


def test_add_legend_names_each_line_once_and_adds_its_own_height():
    figure = figure_of("a", "b", "c", columns=2)
    add_legend(figure, num_columns=2)
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    in_two_lines = figure.get_figheight()
    add_legend(figure)
    in_three_lines = figure.get_figheight()
    assert in_two_lines - HEIGHT == pytest.approx(2 / 3 * (in_three_lines - HEIGHT))


def test_save_figure_draws_labels_that_are_longer_than_the_figure(tmp_path):
    """matplotlib warns, and tests fail, where a legend leaves panels no room."""
    figure = figure_of("nystrom, " + ", ".join(["grad_accum_steps 16"] * 12))
    add_legend(figure)
    assert figure.get_figheight() > HEIGHT + 1
    save_figure(figure, tmp_path / "a")


def test_save_figure_keeps_colours_in_few_bytes(tmp_path):
    figure = new_figure()
    figure.axes[0].imshow(np.random.default_rng(0).normal(size=(200, 200)))
    figure.savefig(tmp_path / "all.png", dpi=150)
    png, _ = save_figure(figure, tmp_path / "few")
    assert png.stat().st_size < 0.6 * (tmp_path / "all.png").stat().st_size
    few, all_colors = (
        np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"), float)
        for name in ("few", "all")
    )
    assert np.abs(few - all_colors).mean() < 1  # of 255


def test_save_figure_writes_the_same_bytes_again(tmp_path):
    for name in ("a", "b"):
        paths = save_figure(figure_of("line"), tmp_path / name)
        assert paths == [tmp_path / f"{name}.png", tmp_path / f"{name}.svg"]
    for suffix in ("png", "svg"):
        first, second = (tmp_path / f"{name}.{suffix}" for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("limits", "ticks"),
    [
        ((10, 60), ["10", "20", "30", "40", "50", "60"]),
        ((1, 100), ["1", "2", "5", "10", "20", "50", "100"]),
    ],
)
def test_set_value_ticks_labels_values_between_the_powers_of_ten(limits, ticks):
    figure = new_figure()
    axes = figure.axes[0]
    axes.set_yscale("log")
    axes.set_ylim(limits)
    set_value_ticks(axes.yaxis)
    low, high = limits
    labels = [
        label.get_text()
        for label in axes.get_yticklabels()
        if low <= label.get_position()[1] <= high
    ]
    assert labels == ticks


def test_set_value_ticks_leaves_a_wide_axis_its_powers_of_ten():
    axes = new_figure().axes[0]
    axes.set_yscale("log")
    axes.set_ylim(1, 1e6)
    locator = axes.yaxis.get_major_locator()
    set_value_ticks(axes.yaxis)
    assert axes.yaxis.get_major_locator() is locator
