"""A run reports what it did: losses by line, throughput, hours and best weights."""

import itertools
import json
import re
import signal
import statistics
from types import SimpleNamespace

import jax
import pytest

from nystromformer.errors import Interrupted
from nystromformer.training import chunk_timer, loop
from nystromformer.training.checkpoint import (
    load_weights,
    save_weights,
    weights_sha256,
)
from nystromformer.training.data import HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.loop import Run, train
from nystromformer.training.objective import Classification
from tests.training.conftest import with_functions

BATCH = 8


@pytest.fixture
def start(run_in, tmp_path):
    """Makes the run in a workdir of this name, new or resumed."""

    def start(name="run", **changes) -> Run:
        return run_in(tmp_path / name, **changes)

    return start


def rows_of_run(run, split):
    """The rows of metrics.jsonl that are of this split."""
    lines = (run.workdir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row for row in rows if row["split"] == split]


def test_a_line_of_training_is_the_mean_of_the_steps_since_the_last_line(start):
    """All batches have one size, so that it is the mean of the lines of each step."""
    every_ten_steps = start("every_ten_steps", log_every=10)
    every_step = start("every_step", log_every=1)
    train(every_ten_steps)
    train(every_step)
    steps = rows_of_run(every_step, "train")
    assert [row["step"] for row in steps] == list(range(1, 41))
    for row in rows_of_run(every_ten_steps, "train"):
        ten_steps = steps[row["step"] - 10 : row["step"]]
        for name in ("loss", "accuracy"):
            mean = statistics.fmean(step[name] for step in ten_steps)
            assert row[name] == pytest.approx(mean, rel=1e-5)
    # Losses that differ by little would have any mean.
    losses = [row["loss"] for row in rows_of_run(every_ten_steps, "train")]
    assert losses[-1] < 0.7 * losses[0]


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        time = SimpleNamespace(monotonic=lambda: self.now)
        for module in (loop, chunk_timer):
            monkeypatch.setattr(module, "time", time)

    def slow_down(self, run, training, evaluation):
        """Lets each chunk of this run last so many seconds; returns their steps."""
        chunk_steps = []
        programs = run.programs

        def train_slowly(state, chunk):
            self.now += training
            chunk_steps.append(int(chunk.num_batches))
            return programs.train_chunk(state, chunk)

        def evaluate_slowly(weights, chunk, example_weights, totals, length):
            self.now += evaluation
            return programs.eval_chunk(
                weights, chunk, example_weights, totals, length=length
            )

        train_slowly.lower = programs.train_chunk.lower
        run.programs = with_functions(
            programs, train_chunk=train_slowly, eval_chunk=evaluate_slowly
        )
        return chunk_steps


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def bar(monkeypatch):
    """Step -> the metrics and the throughput that the progress bar has shown."""
    updates = {}
    update = loop.Progress.update

    def update_and_note(self, step, values, throughput):
        updates[step] = (dict(values), throughput)
        update(self, step, values, throughput)

    monkeypatch.setattr(loop.Progress, "update", update_and_note)
    return updates


def test_throughput_is_of_the_examples_and_seconds_of_a_chunk(
    start, clock, bar, monkeypatch
):
    """The bar shows each chunk's, a line that of its last chunk, the result the median
    of the lines.
    """
    monkeypatch.setattr(chunk_timer, "SECONDS_PER_CHUNK", 5.0)
    run = start()
    chunk_steps = clock.slow_down(run, training=2.0, evaluation=100.0)
    outcome = train(run)
    assert len(set(chunk_steps)) > 1
    last_steps = itertools.accumulate(chunk_steps)
    expected = {
        last_step: num_steps * BATCH / 2
        for last_step, num_steps in zip(last_steps, chunk_steps, strict=True)
    }
    assert {step: throughput for step, (_, throughput) in bar.items()} == expected
    throughputs = {
        row["step"]: row["examples_per_second"] for row in rows_of_run(run, "train")
    }
    assert throughputs == {step: expected[step] for step in range(5, 41, 5)}
    assert outcome["examples_per_second"] == statistics.median(throughputs.values())


def test_the_bar_shows_what_the_line_of_its_step_says(start, bar):
    run = start()
    train(run)
    assert max(bar) == 40
    for row in rows_of_run(run, "train"):
        values, throughput = bar[row["step"]]
        assert row == {
            "step": row["step"],
            "split": "train",
            "loss": values["loss"],
            "accuracy": values["accuracy"],
            "examples_per_second": throughput,
        }


def test_wall_seconds_are_those_of_all_sessions_without_the_pauses(start, clock):
    run = start()
    clock.slow_down(run, training=3.0, evaluation=0.25)
    with pytest.raises(Interrupted):
        train(run, should_stop=lambda: signal.SIGTERM if run.step >= 12 else 0)
    first_session = clock.now
    # It has at least three chunks of 3 seconds.
    assert first_session > 3 * 3

    clock.now += 1e6
    run = start()
    clock.slow_down(run, training=5.0, evaluation=0.5)
    resumed_at = clock.now
    outcome = train(run)
    second_session = clock.now - resumed_at
    assert outcome["wall_seconds"] == first_session + second_session


def test_the_weights_that_were_best_are_tested_not_the_last(start, splits):
    """Here the lowest accuracy is the best, which an early step has."""
    objective = Classification()
    objective.higher_is_better = False
    run = start(objective=objective)
    outcome = train(run)
    accuracies = {
        row["step"]: row["accuracy"] for row in rows_of_run(run, "validation")
    }
    best_step = min(accuracies, key=lambda step: accuracies[step])
    assert outcome["best_step"] == best_step
    assert outcome["validation_accuracy"] == accuracies[best_step]
    assert best_step < outcome["steps"] == 40

    names = ("loss", "accuracy", "examples")
    metrics = {name: outcome[f"test_{name}"] for name in names}
    (row,) = rows_of_run(run, "test")
    assert row == {"step": 40, "split": "test", **metrics}

    best_weights, _ = load_weights(run.workdir / "best", run.state.weights)
    best_weights = jax.device_put(best_weights)
    test = HostSplit.from_split(splits["test"])
    assert metrics == evaluate(run.programs, best_weights, test, BATCH)
    metrics_of_last = evaluate(run.programs, run.state.weights, test, BATCH)
    assert metrics_of_last["accuracy"] > metrics["accuracy"]


def test_the_weights_that_were_tested_take_the_place_of_those_of_a_killed_session(
    start,
):
    """It was killed after it had written newer ones."""
    run = start()
    train(run)
    save_weights(run.workdir / "best", jax.tree.map(lambda x: x + 1, run.best))
    resumed = start()
    outcome = train(resumed)
    best_weights, _ = load_weights(run.workdir / "best", run.state.weights)
    assert weights_sha256(best_weights) == outcome["params_sha256"]


def test_a_validation_is_of_its_split_by_the_weights_of_its_step(start, splits, capsys):
    """metrics.jsonl and the screen show the same."""
    run = start(num_steps=16)
    train(run)
    row = rows_of_run(run, "validation")[-1]
    data = HostSplit.from_split(splits["validation"])
    expected = evaluate(run.programs, run.state.weights, data, BATCH)
    assert row == {"step": 16, "split": "validation", **expected}
    numbers = f"accuracy {row['accuracy']:.4f}, loss {row['loss']:.4f}"
    lines = re.findall(r"step (\d+): validation (.*)", capsys.readouterr().out)
    assert [step for step, _ in lines] == ["8", "16"]
    assert lines[-1] == ("16", numbers)
