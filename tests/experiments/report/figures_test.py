"""The numbers that the figures draw."""

import math

import pytest

from nystromformer.experiments.report.figures import by_landmarks, curves, figures


@pytest.fixture
def landmarks(runs):
    """Two seeds of 16 landmarks, one of 64, one of exact attention."""
    runs.add("a", 0.50, attention__num_landmarks=16)
    runs.add("b", 0.54, attention__num_landmarks=16, seed=1)
    fast = {"examples_per_second": 100.0}
    runs.add("c", 0.60, attention__num_landmarks=64, result=fast)
    runs.add("d", 0.70, arg="softmax,quick")
    return runs


def test_by_landmarks_draws_means_bars_and_exact_attention(landmarks):
    frame = landmarks.read()
    axes = by_landmarks(frame, "score", "test accuracy, %").axes[0]
    line, _, (bars,) = axes.containers[0]
    assert line.get_xydata().tolist() == [[16, 52], [64, pytest.approx(60)]]
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    binomial = 100 * math.sqrt(0.6 * 0.4 / 2000)
    sd = math.sqrt(8)  # of 50 and 54
    assert ends == [
        pytest.approx([52 - sd, 52 + sd]),
        pytest.approx([60 - binomial, 60 + binomial]),
    ]
    flat = axes.get_lines()[-1]
    assert set(flat.get_ydata()) == {70.0}
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert sorted(legend) == ["nystrom", "softmax"]


def test_by_landmarks_needs_two_numbers_of_landmarks(three):
    assert by_landmarks(three.read(), "score", "test") is None


def test_figures_of_costs_are_of_one_device(landmarks):
    drawn = figures(landmarks.read())
    line = drawn["landmarks_examples_per_second"].axes[0].containers[0][0]
    assert line.get_xydata().tolist() == [[16, 500], [64, 100]]
    memory = drawn["landmarks_compiled_bytes"].axes[0].containers[0][0]
    assert memory.get_ydata().tolist() == [3, 3]  # MiB
    assert "landmarks_peak_bytes" not in drawn
    landmarks.add(
        "e", 0.6, attention__num_landmarks=64, seed=1, result={"device": "TPU"}
    )
    assert {"landmarks_accuracy", "landmarks_examples_per_second"} & {
        *figures(landmarks.read())
    } == {"landmarks_accuracy"}


def test_curves_average_seeds_up_to_the_last_step_of_all(runs):
    runs.add("a", 0.5, steps=(50, 100, 150))
    runs.add("b", seed=1, steps=(50, 100))
    first, second, mean = curves(runs.read(), "train", "loss").axes[0].get_lines()
    assert first.get_xydata().tolist() == [[50, 2 / 50], [100, 2 / 100], [150, 2 / 150]]
    assert second.get_xdata().tolist() == mean.get_xdata().tolist() == [50, 100]
    accuracy = curves(runs.read(), "validation", "accuracy").axes[0].get_lines()[0]
    assert accuracy.get_ydata() == pytest.approx([5, 10, 15])  # per cent


def test_figures_draw_each_validated_metric_and_no_empty_one(runs):
    runs.add("a", steps=())
    assert figures(runs.read()) == {}
    runs.add("b", 0.5, seed=1)
    names = {"curves_validation_accuracy", "curves_train_loss"}
    assert {*figures(runs.read())} == names
