"""The numbers that the figures draw."""

import math

import pytest

from nystromformer.experiments.report.figures import draw_by_landmarks, draw_figures
from tests.experiments.report.conftest import SOFTMAX, read_groups


def texts_of(labels):
    return [label.get_text() for label in labels]


def lines_by_figure(runs):
    """The lines of each figure of a report, by its name."""
    return {
        name: figure.axes[0].get_lines()
        for name, figure in draw_figures(read_groups(runs))
    }


def test_draw_by_landmarks_draws_means_bars_and_exact_attention(runs):
    runs.add("nystrom,quick", 0.50, attention__num_landmarks=16)
    runs.add("nystrom,quick", 0.54, attention__num_landmarks=16, seed=1)
    runs.add("nystrom,quick", 0.60, attention__num_landmarks=64)
    runs.add("softmax,quick", 0.70)

    axes = draw_by_landmarks(runs.read()).axes[0]

    line, _, (bars,) = axes.containers[0]
    assert line.get_xydata().tolist() == [[16, 52], [64, pytest.approx(60)]]
    # Two seeds have the standard deviation of 50 and 54, and one has the binomial one.
    deviation = math.sqrt(8)
    binomial_deviation = 100 * math.sqrt(0.6 * 0.4 / 2000)
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [
        pytest.approx([52 - deviation, 52 + deviation]),
        pytest.approx([60 - binomial_deviation, 60 + binomial_deviation]),
    ]
    softmax_line = axes.get_lines()[-1]
    assert set(softmax_line.get_ydata()) == {70.0}
    assert texts_of(axes.get_xticklabels()) == ["16", "64"]
    legend = texts_of(axes.figure.legends[0].get_texts())
    assert sorted(legend) == ["nystrom", SOFTMAX]


def test_draw_curves_averages_seeds_up_to_the_last_step_of_all(runs):
    runs.add("nystrom,quick", 0.5, steps=(50, 100, 150))
    workdir = runs.add("nystrom,quick", seed=1, steps=(50, 100))
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 150, "spl')  # It trains, and is writing this line.
    lines = lines_by_figure(runs)
    first, second, mean = lines["curves_train_loss"]
    assert list(first.get_xdata()) == [50, 100, 150]
    assert list(first.get_ydata()) == [2 / 50, 2 / 100, 2 / 150]
    assert list(second.get_xdata()) == [50, 100]
    assert list(mean.get_xdata()) == [50, 100]
    percentages = lines["curves_validation_accuracy"][0].get_ydata()
    assert percentages == pytest.approx([5, 10, 15])


def test_draw_curves_shows_a_single_value_as_a_point(runs):
    runs.add("nystrom,quick", 0.5, steps=(50,))
    runs.add("nystrom,quick", 0.5, seed=1, steps=(50, 100))
    lines = lines_by_figure(runs)["curves_validation_accuracy"]
    assert [line.get_marker() for line in lines] == ["o", "", "o"]


def test_draw_figures_has_each_validated_metric_and_no_empty_one(runs):
    runs.add("nystrom,quick", steps=())
    assert not lines_by_figure(runs)
    runs.add("nystrom,quick", 0.5, seed=1)
    names = list(lines_by_figure(runs))
    assert names == ["curves_validation_accuracy", "curves_train_loss"]
