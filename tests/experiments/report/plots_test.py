"""What the figures show is what the runs have found."""

import pytest

from nystromformer.experiments.figures import save_figure
from nystromformer.experiments.report.plots import figures
from tests.experiments.report.conftest import read_frame


def drawn(runs):
    return figures(read_frame(runs)[0])


def sweep(runs, **result):
    """Two seeds each of 16 and 64 landmarks and of softmax."""
    found = {"nystrom-16": 0.40, "nystrom-64": 0.50, "softmax": 0.55}
    for name, accuracy in found.items():
        attention, _, landmarks = name.partition("-")
        changes = {"attention__num_landmarks": int(landmarks)} if landmarks else {}
        for seed, shift in enumerate((-0.01, 0.01)):
            config = {"arg": f"{attention},quick", "seed": seed, **changes}
            path = f"{name}-{seed}"
            runs.finished(path, accuracy + shift, result=result, **config)


def legend(figure):
    (found,) = figure.legends
    return {text.get_text() for text in found.get_texts()}


def test_quantities_against_landmarks_with_exact_attention_as_a_line(runs):
    sweep(runs, compiled_bytes=3 * 2**20)
    found = drawn(runs)
    figure = found["landmarks_accuracy"]
    axes = figure.axes[0]
    (bars,) = axes.containers
    x, y = bars[0].get_data()
    assert list(x) == [16, 64]
    assert list(y) == pytest.approx([40, 50])
    (segment, *_) = bars[2][0].get_segments()  # √2 points around the mean
    assert [end[1] for end in segment] == pytest.approx([40 - 2**0.5, 40 + 2**0.5])
    (exact,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(exact.get_ydata()) == pytest.approx([55, 55])
    assert legend(figure) == {"nystrom", "softmax"}
    (bars,) = found["landmarks_compiled_memory"].axes[0].containers
    assert list(bars[0].get_ydata()) == [3, 3]
    assert "landmarks_peak_memory" not in found  # not measured


def test_one_seed_has_the_bar_of_its_test_examples(runs):
    for landmarks in (16, 64):
        runs.finished(f"{landmarks}", 0.5, attention__num_landmarks=landmarks)
    (bars,) = drawn(runs)["landmarks_accuracy"].axes[0].containers
    sd = 100 * (0.5 * 0.5 / 2000) ** 0.5
    for segment in bars[2][0].get_segments():
        assert [end[1] for end in segment] == pytest.approx([50 - sd, 50 + sd])


def test_one_number_of_landmarks_is_no_figure(runs):
    runs.finished("nystrom")
    runs.unfinished("more", attention__num_landmarks=64, steps=())
    assert drawn(runs).keys() == {"curves_validation_accuracy", "curves_train_loss"}


def test_throughput_of_two_devices_is_two_lines(runs, tmp_path):
    sweep(runs)
    gpu = r"$\nonsense$"  # no mathematics
    for landmarks in (16, 64):
        config = {"attention__num_landmarks": landmarks, "seed": 2}
        runs.finished(f"gpu-{landmarks}", result={"device": gpu}, **config)
    found = drawn(runs)
    cpu = "CPU x86_64, 2 cores"
    assert legend(found["landmarks_throughput"]) == {
        *(f"nystrom, {cpu}", r"nystrom, \$\nonsense\$", f"softmax, {cpu}")
    }
    assert legend(found["landmarks_accuracy"]) == {"nystrom", "softmax"}
    save_figure(found["landmarks_throughput"], tmp_path / "figure")


def test_curves_have_a_thin_line_a_seed_and_a_mean_as_far_as_all_have_come(runs):
    runs.unfinished("a", steps=(500, 1000), seed=0)
    runs.unfinished("b", steps=(500,), seed=1)
    runs.unfinished("c", steps=(), seed=2)
    figure = drawn(runs)["curves_validation_accuracy"]
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata())]
    thin, thick = ([x for x in lines if (x.get_lw() < 1) == t] for t in (True, False))
    assert [list(line.get_xdata()) for line in thin] == [[500, 1000], [500]]
    assert [list(line.get_ydata()) for line in thick] == [[5.0]]
    assert legend(figure) == {"nystrom"}


def test_each_metric_of_validation_has_a_figure_in_its_unit(runs):
    path = runs.unfinished("a") / "metrics.jsonl"
    values = '"loss": 3.0, "mlm_accuracy": 0.25, "perplexity": 20.1'
    path.write_text(f'{{"step": 5, "split": "validation", {values}}}\n')
    found = drawn(runs)
    titles = {name: figure.axes[0].get_ylabel() for name, figure in found.items()}
    assert titles == {
        "curves_validation_mlm_accuracy": "validation mlm accuracy, %",
        "curves_validation_perplexity": "validation perplexity",
    }
    line = found["curves_validation_mlm_accuracy"].axes[0].lines[0]
    assert list(line.get_ydata()) == [25.0]
