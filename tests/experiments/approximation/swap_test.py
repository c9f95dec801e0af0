"""What a model loses where exact attention is exchanged for Nyström attention."""

import numpy as np
import pandas as pd
import pytest

from lra_tasks.split import Split
from nystromformer.experiments.approximation import swap
from nystromformer.experiments.approximation.columns import SEGMENT_MEANS
from nystromformer.experiments.approximation.pictures import draw_swaps
from nystromformer.experiments.approximation.study import Study
from nystromformer.experiments.approximation.study_page import describe_study
from nystromformer.experiments.approximation.swap import EXACT, ExampleSums
from nystromformer.experiments.approximation.swap_page import by_layer_setting
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.landmarks import LANDMARKS
from tests.small import make_config, untrained

SETTINGS = {
    "model__num_layers": 2,
    "model__model_dim": 8,
    "model__mlp_dim": 8,
    "objective__name": "classification_denoising",  # It has two rates.
}


# Few landmarks, and as many as there are tokens at most.
COUNTS = (2, 20)


@pytest.fixture(scope="module")
def run():
    """A model whose attention is far from even, so that landmarks matter."""
    run = untrained("softmax,quick", **SETTINGS)
    for block in run.weights.params["encoder"]["blocks"].values():
        for part in ("project", "out"):
            kernel = block["attention"][part]["kernel"]
            kernel.set_value(20 * kernel[...])
    return run


@pytest.fixture(scope="module")
def meters(run):
    """The meters of all kinds: a program each, for 2 and for 20 landmarks.

    All but the first have few iterations, which compile faster.
    """
    meters = {SEGMENT_MEANS: swap.SwapMeter(run, COUNTS, SEGMENT_MEANS)}
    with pytest.MonkeyPatch.context() as patch:
        for kind, options in swap.KINDS.items():
            patch.setitem(swap.KINDS, kind, {"num_pinv_iters": 1, **options})
            meters.setdefault(kind, swap.SwapMeter(run, COUNTS, kind))
    return meters


@pytest.fixture
def splits(run, monkeypatch):
    """Validation and test, of twelve and nine examples."""
    rng = np.random.default_rng(0)
    splits = {}
    for name, num_examples in {"validation": 12, "test": 9}.items():
        lengths = rng.integers(6, 20, num_examples).astype(np.int32)
        inputs = rng.integers(1, run.task.vocab_size, (num_examples, 20))
        inputs[np.arange(20) >= lengths[:, None]] = 0
        labels = rng.integers(0, 10, num_examples).astype(np.int32)
        splits[name] = Split(inputs.astype(np.uint8), lengths, labels)
    monkeypatch.setattr(type(run.task), "load", lambda self, name, _: splits[name])
    return splits


def metrics_of(run, landmarks):
    """The metrics of validation, by the config of a run with these landmarks."""
    by_layer = by_layer_setting(landmarks)
    config = make_config(
        "softmax,quick", **SETTINGS, attention__by_layer=by_layer or None
    )
    other = TrainedRun(Experiment(config), run.weights, None)
    return other.evaluate("validation")


@pytest.mark.parametrize("landmarks", [(2, EXACT), (20, 2)])
def test_a_measured_model_is_that_of_the_config_of_its_landmarks(
    run, meters, splits, landmarks
):
    examples = swap._draw_examples(splits["validation"], 100)
    sums = meters[SEGMENT_MEANS].measure(examples, landmarks)
    expected = metrics_of(run, landmarks)
    assert sums["loss"].mean() == pytest.approx(expected["loss"], rel=1e-5)
    assert sums["accuracy"].mean() == pytest.approx(expected["accuracy"])
    assert len(sums["loss"].sums) == 12


def test_layers_and_kinds_differ_and_enough_landmarks_are_exact(run, meters, splits):
    examples = swap._draw_examples(splits["validation"], 100)

    def loss(kind, *landmarks):
        return meters[kind].measure(examples, landmarks)["loss"].mean()

    exact = loss(SEGMENT_MEANS, EXACT, EXACT)
    losses = [exact, loss(SEGMENT_MEANS, 2, EXACT)]
    losses.append(loss(SEGMENT_MEANS, EXACT, 2))
    losses += [loss(kind, 2, 2) for kind in swap.KINDS]
    assert np.diff(sorted(losses)).min() > 1e-4

    # As many landmarks as tokens are exact attention of whatever kind.
    for kind in swap.KINDS:
        assert loss(kind, 20, 20) == pytest.approx(exact, rel=1e-5)


def test_measure_swaps_has_every_group(run, meters, splits, monkeypatch, capsys):
    """With a choice of landmarks that a loaded module has registered."""
    monkeypatch.setitem(LANDMARKS, "first_tokens", LANDMARKS["random"])
    meters = {**meters, "first tokens": meters["random tokens"]}
    monkeypatch.setattr(swap, "SwapMeter", lambda run, counts, kind: meters[kind])
    swaps = swap.measure_swaps(run, COUNTS, num_examples=13)
    validation, measurements, *_ = capsys.readouterr().out.splitlines()
    has_fewer = "validation has only 12 of the 13 examples of --swap_examples"
    assert validation == has_fewer
    num_measurements = 5 * 2 + 2 * 2 * 2
    assert f": {num_measurements} measurements on 12 examples…" in measurements
    assert swaps.num_examples == swaps.num_validation == 12
    assert swaps.num_tokens == splits["validation"].lengths.max()
    assert swaps.advice.num_examples == 9
    assert swaps.exact.keys() == {"accuracy", "denoising_accuracy"}
    assert [*swaps.advice.together] == ["accuracy", "denoising_accuracy"]
    of_tokens = swaps.rows(swap.ALL_LAYERS, "denoising_accuracy")
    assert len(of_tokens) == 5 * 2
    assert of_tokens["difference"].abs().max() > 0
    table = swaps.table[swaps.table["metric"] == "accuracy"]
    assert "first tokens" in set(table["kind"])
    assert table.groupby("group").size().to_dict() == {
        swap.ALL_LAYERS: 5 * 2,
        swap.ONE_LAYER: 2 * 2,
        swap.BEST_LAYERS: 2 * 2,
    }
    # Both layers exchanged are the same, whoever asks.
    segment_means = table[table["kind"] == SEGMENT_MEANS]
    both = segment_means[segment_means["layers"] == "0 1"].groupby("num_landmarks")
    assert (both["difference"].nunique() == 1).all()

    layer = AttentionInputs(None, None, None, mask=np.ones((1, 4), bool))
    study = Study(run, [layer], [2], {}, pd.DataFrame(), swaps)
    page = "\n".join(describe_study(study))
    assert "## What an exchange costs" in page
    assert "| layer 1 |" in page
    assert "**All layers exchanged, denoising_accuracy** in points" in page
    titles = [axes.get_title() for axes in draw_swaps(swaps).axes]
    assert "one layer exchanged" in titles


class CostMeter:
    """A model that is as much worse as the exchanged layers and the kind cost."""

    cost_of_layer = (0.3, 0.1)

    def __init__(self, run, counts, kind):
        self.cost_of_kind = [*swap.KINDS].index(kind) / 64

    def measure(self, examples, landmarks):
        cost = self.cost_of_kind if any(landmarks) else 0.0
        for cost_of_layer, count in zip(self.cost_of_layer, landmarks, strict=True):
            cost += cost_of_layer if count != EXACT else 0.0
        ones = np.ones(len(examples.labels))
        rate = ExampleSums((1 - cost) * ones, ones)
        loss = ExampleSums((1 + cost) * ones, ones)
        return {"loss": loss, "accuracy": rate, "denoising_accuracy": rate}


def test_measure_swaps_measures_each_kind_and_the_layers_in_the_order_of_their_costs(
    run, splits, monkeypatch
):
    folders = []

    def load(task, name, folder):
        folders.append(folder)
        return splits[name]

    monkeypatch.setattr(type(run.task), "load", load)
    monkeypatch.setattr(swap, "SwapMeter", CostMeter)
    swaps = swap.measure_swaps(run, COUNTS, num_examples=5, data_dir="/moved")
    assert folders == ["/moved"] * 2
    by_kind = swaps.rows(swap.ALL_LAYERS).groupby("kind", sort=False)["difference"]
    expected = -0.4 - np.arange(len(swap.KINDS)) / 64
    np.testing.assert_allclose(by_kind.first(), expected)
    assert swaps.rows(swap.ONE_LAYER)["difference"].tolist() == [-0.3, -0.1] * 2
    assert swaps.rows(swap.BEST_LAYERS)["layers"].tolist() == ["1", "0 1"] * 2
    # Of other rates only the exchange of all layers is told.
    of_another_rate = swaps.table["metric"] == "denoising_accuracy"
    assert set(swaps.table[of_another_rate]["group"]) == {swap.ALL_LAYERS}


def test_landmarks_of_a_loaded_module_are_exchanged_too(monkeypatch):
    monkeypatch.setitem(LANDMARKS, "first_tokens", LANDMARKS["random"])
    kinds = swap.known_kinds()
    assert [*kinds] == [*swap.KINDS, "first tokens"]
    assert kinds["first tokens"] == {"landmarks": "first_tokens"}


def test_fewer_examples_than_a_split_has_are_drawn_from_all_of_it(splits):
    """A split may be sorted by class."""
    drawn = swap._draw_examples(splits["validation"], 5)
    ids = np.asarray(drawn.example_ids)
    assert len(set(ids.tolist())) == 5
    assert ids.min() < 6 < ids.max()
    np.testing.assert_array_equal(drawn.labels, splits["validation"].labels[ids])


@pytest.mark.parametrize(
    ("metric", "higher_is_better", "sign"),
    [("accuracy", False, 1), ("loss", False, -1), ("f1", True, 1)],
)
def test_a_change_for_the_worse_is_negative(metric, higher_is_better, sign):
    """A rate beside a loss that selects is better if it is higher, too."""
    exact = {metric: ExampleSums(np.zeros(6), np.ones(6))}
    swapped = {metric: ExampleSums(np.array([1.0, 0, 1, 0, 1, 0]), np.ones(6))}
    differences = swap._differences([metric], swapped, exact, higher_is_better)
    assert differences[metric].difference == sign * 0.5
    assert differences[metric].has_changed


def test_the_noise_of_a_difference_is_of_the_same_examples():
    """Examples that both models get right or wrong add no noise."""
    exact = ExampleSums(np.array([1.0, 1, 0, 0, 1, 1, 0, 1]), np.ones(8))
    swapped = ExampleSums(np.array([1.0, 0, 0, 0, 1, 1, 0, 1]), np.ones(8))

    difference, noise, has_changed = swap._difference(swapped, exact, True)
    assert difference == pytest.approx(-1 / 8)
    # One of eight is no surer than none.
    assert (noise, has_changed) == (3 / 8, False)

    two_wrong = ExampleSums(np.array([0.0, 0, 0, 0, 1, 1, 0, 1]), np.ones(8))
    assert swap._difference(two_wrong, exact, True) == (-2 / 8, 3 / 8, False)
    # One that changes by much is known worse than by the rule of three.
    one_far = ExampleSums(exact.sums - 8 * (np.arange(8) == 0), np.ones(8))
    difference = swap._difference(one_far, exact, True)
    assert difference.noise == pytest.approx(2 * np.sqrt(7 / 8))

    all_wrong = ExampleSums(np.zeros(8), np.ones(8))
    difference, noise, has_changed = swap._difference(all_wrong, exact, True)
    assert difference == pytest.approx(-5 / 8)
    # Five of eight examples change: the variance of their change is 5/8 · 3/8.
    assert noise == pytest.approx(2 * np.sqrt(15 / 64 / 8))
    assert has_changed

    # None of eight examples changes: by the rule of three 3/8 of all still may.
    unchanged = swap._difference(exact, exact, higher_is_better=True)
    assert unchanged == (0, 3 / 8, False)

    worse = swap._difference(swapped, exact, higher_is_better=False)
    assert worse.difference == pytest.approx(1 / 8)


def test_the_noise_of_a_ratio_is_that_of_repeated_draws():
    """Weights differ between examples, as the numbers of masked tokens do."""
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 30, 400).astype(float)
    sums = rng.binomial(weights.astype(int), rng.uniform(0.2, 0.9, 400))
    ratio = ExampleSums(sums.astype(float), weights)
    draws = rng.integers(0, 400, (2000, 400))
    bootstrap = np.std(sums[draws].sum(1) / weights[draws].sum(1))
    assert np.std(ratio.parts()) / 20 == pytest.approx(bootstrap, rel=0.06)


def rows_of_one_layer(differences, noise=0.01):
    """The rows of each layer alone, from (layer, landmarks) -> difference."""
    rows = [
        {
            "group": swap.ONE_LAYER,
            "layers": f"{layer}",
            "num_landmarks": count,
            "difference": difference,
            "noise": noise,
        }
        for (layer, count), difference in differences.items()
    ]
    return pd.DataFrame(rows)


def test_each_layer_needs_the_least_number_that_loses_little():
    table = rows_of_one_layer(
        {
            **{(0, 16): -0.2, (0, 64): -0.004, (0, 256): 0.0},
            **{(1, 16): 0.001, (1, 64): -0.1, (1, 256): 0.0},
            **{(2, 16): -0.3, (2, 64): -0.2, (2, 256): -0.0051},
        }
    )
    assert swap.landmarks_needed(table, 3, num_tokens=1_000) == (64, 16, EXACT)
    # 64 landmarks of 128 tokens save nothing.
    assert swap.landmarks_needed(table, 3, num_tokens=128) == (EXACT, 16, EXACT)


def test_a_number_that_is_sure_is_taken_before_a_smaller_one():
    table = rows_of_one_layer(
        {
            **{(0, 16): 0.0, (0, 32): 0.0052, (0, 64): 0.006},
            **{(1, 16): 0.0, (1, 32): 0.0, (1, 64): -0.1},
        }
    )
    assert swap.landmarks_needed(table, 2, num_tokens=1_000) == (32, 16)


def test_a_loss_of_just_half_a_point_is_at_most_half_a_point():
    exact, swapped = [
        ExampleSums((np.arange(400) < num_right).astype(float), np.ones(400))
        for num_right in (247, 245)
    ]
    difference = swap._difference(swapped, exact, higher_is_better=True).difference
    table = rows_of_one_layer({(0, 16): difference})
    assert swap.landmarks_needed(table, 1, num_tokens=100) == (16,)


@pytest.mark.parametrize(
    ("arg", "by_layer", "is_exact"),
    [
        ("softmax,quick", None, True),
        ("softmax,quick", "1=nystrom", False),
        ("nystrom,quick", None, False),
    ],
)
def test_only_exact_attention_is_exchanged(arg, by_layer, is_exact):
    run = untrained(arg, **SETTINGS, attention__by_layer=by_layer)
    assert swap.has_exact_attention(run) == is_exact


@pytest.mark.parametrize(
    ("result", "floor"),
    [
        # Two binomial standard deviations of 2,100 examples are 0.02.
        ({"floors": {"rule": 0.3, "other": 0.1}, "test_accuracy": 0.319}, 0.3),
        ({"floors": {"rule": 0.3, "other": 0.1}, "test_accuracy": 0.321}, None),
        ({"floors": {}, "test_accuracy": 0.1}, None),
        (None, None),
    ],
)
def test_a_floor_is_named_where_the_whole_test_is_within_chance_of_it(
    run, result, floor
):
    """The drawn examples may be above it by luck."""
    if result is not None:
        result["test_examples"] = 2_100
    tested = TrainedRun(run.experiment, run.weights, result)
    assert swap._floor_within_chance(tested) == floor


def test_a_floor_of_a_loss_is_not_named(run, monkeypatch):
    """Its deviation over the test is not known."""
    monkeypatch.setattr(run.experiment.objective, "higher_is_better", False)
    result = {"floors": {"rule": 2.3}, "test_accuracy": 2.2, "test_examples": 2_100}
    tested = TrainedRun(run.experiment, run.weights, result)
    assert swap._floor_within_chance(tested) is None
