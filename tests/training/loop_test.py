"""A run: what it writes, that it resumes bit-equal, that it stops as it should."""

import json
import os
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from nystromformer.config import TrainConfig
from nystromformer.training import loop
from nystromformer.training.arrays import digest, load_arrays
from nystromformer.training.interrupt import Interrupted
from nystromformer.training.loop import Trainer
from nystromformer.training.objective import Classification

SCHEDULE = TrainConfig(
    seed=0,
    batch_size=8,
    num_steps=40,
    eval_every=8,
    log_every=5,
    checkpoint_every=12,
)
TIMES = ("examples_per_second",)


@pytest.fixture
def start(make_model, optimizer, splits, tmp_path):
    """Makes the run in a workdir of this name, new or resumed."""

    def start(
        name="run", objective=None, schedule=SCHEDULE, splits=splits, **options
    ) -> Trainer:
        workdir, objective = tmp_path / name, objective or Classification()
        workdir.mkdir(exist_ok=True)
        run = make_model, objective, optimizer, schedule, splits, workdir
        return Trainer(*run, **options)

    return start


def lines(run_dir) -> list[dict]:
    text = (run_dir / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


def stop_at(monkeypatch, step: int, signum: int) -> None:
    """Sends this process a signal as soon as the run has reached the step."""
    update = loop.Progress.update

    def update_and_stop(self, at, values, throughput):
        update(self, at, values, throughput)
        if at >= step:
            os.kill(os.getpid(), signum)

    monkeypatch.setattr(loop.Progress, "update", update_and_stop)


def fit_until(run: Trainer, step: int, monkeypatch) -> None:
    """Stopped there by SIGTERM."""
    with monkeypatch.context() as patched:
        stop_at(patched, step, signal.SIGTERM)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step"):
            run.fit()


def test_a_run_learns_logs_validates_and_tests(start, tmp_path):
    outcome = start("whole").fit()
    assert outcome["steps"] == 40
    assert outcome["test_accuracy"] > 0.8
    assert outcome["test_examples"] == 29
    by_split = {}
    for line in lines(tmp_path / "whole"):
        by_split.setdefault(line["split"], []).append(line)
    assert [line["step"] for line in by_split["train"]] == list(range(5, 41, 5))
    validation = by_split["validation"]
    assert [line["step"] for line in validation] == [8, 16, 24, 32, 40]
    assert {line["examples"] for line in validation} == {23}
    accuracies = [line["accuracy"] for line in validation]
    assert outcome["validation_accuracy"] == max(accuracies)
    best = accuracies.index(max(accuracies))
    assert outcome["best_step"] == validation[best]["step"]
    assert by_split["test"][0]["accuracy"] == outcome["test_accuracy"]


@pytest.mark.parametrize("step", [3, 16, 40])
def test_a_stopped_run_goes_on_bit_equal(start, tmp_path, monkeypatch, step):
    whole = start("whole").fit()
    fit_until(start("stopped"), step, monkeypatch)
    resumed = start("stopped").fit()
    for name in ("params_sha256", "test_loss", "compiled_bytes"):
        assert resumed[name] == whole[name]
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")


def test_a_validation_after_resuming_is_saved(start, monkeypatch):
    fit_until(start(), 40, monkeypatch)  # before it could validate
    run = start()
    assert run.record.evaluated == 32
    with monkeypatch.context() as patched:
        patched.setattr(run, "_test", lambda: os.kill(os.getpid(), signal.SIGTERM))
        run.fit()
    again = start()
    assert again.record.evaluated == 40
    again.writer.close()


def test_data_mapped_from_disk_give_the_same_bits_and_resume(
    start, splits, tmp_path, monkeypatch
):
    """Rows of one file are fed in chunks; keys of the examples are their own."""

    def mapped(name, split):
        record = [("inputs", "u1", split.inputs.shape[1:]), ("lengths", "i4")]
        rows = np.empty(len(split.labels), [*record, ("labels", "i4")])
        for column in rows.dtype.names:
            rows[column] = getattr(split, column)
        rows.tofile(tmp_path / name)
        rows = np.memmap(tmp_path / name, rows.dtype, "r")
        columns = {column: rows[column] for column in rows.dtype.names}
        return SimpleNamespace(**columns, pairs=None)

    class Noisy(Classification):
        """What an example adds to the loss depends on which it is."""

        def __call__(self, model, batch, key):
            sums = super().__call__(model, batch, key)
            total, weight = sums["loss"]
            return {**sums, "loss": (total * (1 + batch.indices.sum() / 99), weight)}

    whole = start("whole", Noisy()).fit()
    splits = {name: mapped(name, split) for name, split in splits.items()}
    monkeypatch.setattr(loop, "MAX_MAPPED_CHUNK", 3)
    fit_until(start("mapped", Noisy(), splits=splits), 16, monkeypatch)
    found = start("mapped", Noisy(), splits=splits).fit()
    for name in ("params_sha256", "test_loss"):
        assert found[name] == whole[name]
    assert lines(tmp_path / "mapped") == lines(tmp_path / "whole")


def test_a_run_in_parts_learns_and_goes_on_bit_equal(start, monkeypatch):
    batching = {"grad_accum_steps": 2, "length_buckets": 3}
    in_parts = SCHEDULE.model_copy(update=batching)
    told, make, sizes, measure = [], loop.make_train_chunk, [], loop.evaluate
    monkeypatch.setattr(
        loop, "evaluate", lambda *a, **b: sizes.append((a[4], a[6])) or measure(*a, **b)
    )
    monkeypatch.setattr(
        loop, "make_train_chunk", lambda *a, **b: told.append(b) or make(*a, **b)
    )
    whole = start("whole", schedule=in_parts).fit()
    assert whole["test_accuracy"] > 0.8
    assert told == [batching]
    assert set(sizes) == {(4, 3)}  # of evaluation too
    fit_until(start("stopped", schedule=in_parts), 16, monkeypatch)
    resumed = start("stopped", schedule=in_parts).fit()
    assert resumed["params_sha256"] == whole["params_sha256"]


def test_a_run_that_lost_its_last_lines_and_steps_goes_on_bit_equal(
    start, tmp_path, monkeypatch
):
    whole = start("whole").fit()
    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_save", lambda self: None)
        patched.setattr(loop.Trainer, "_test", lambda self: None)
        start("lost").fit()  # as after a kill before the first checkpoint
    assert start("lost").fit()["params_sha256"] == whole["params_sha256"]
    assert lines(tmp_path / "lost") == lines(tmp_path / "whole")


@pytest.mark.parametrize(("now", "over_all"), [(None, 7), (5, 7), (11, 11)])
def test_the_peak_is_that_of_all_sessions(start, monkeypatch, now, over_all):
    with monkeypatch.context() as patched:
        patched.setattr(loop, "peak_bytes", lambda: 7)
        fit_until(start("sessions"), 3, monkeypatch)
    monkeypatch.setattr(loop, "peak_bytes", lambda: now)
    assert start("sessions").fit()["peak_bytes"] == over_all


def test_a_finished_run_keeps_its_best_weights_alone(start, tmp_path):
    run = start("kept")
    outcome = run.fit()
    again = start("kept").fit()  # as after a kill before the result was written
    assert again["test_loss"] == outcome["test_loss"]
    run.finish()
    best = tmp_path / "kept" / "best" / f"{outcome['best_step']}.safetensors"
    assert [*(tmp_path / "kept" / "best").iterdir()] == [best]
    assert not [*(tmp_path / "kept" / "checkpoints").iterdir()]
    assert digest(load_arrays(best, run.state.weights)[0]) == outcome["params_sha256"]


def test_weights_are_on_disk_before_a_result_names_them(start, tmp_path, monkeypatch):
    """Even the best of a last validation that a signal had cut short."""
    fit_until(start("late"), 40, monkeypatch)
    run = start("late")
    found = {"loss": 0.0, "accuracy": 2.0, "examples": 8.0}
    monkeypatch.setattr(run, "_evaluate", lambda *_: dict(found))
    outcome = run.fit()
    assert outcome["best_step"] == 40
    best = tmp_path / "late" / "best" / "40.safetensors"
    assert digest(load_arrays(best, run.state.weights)[0]) == outcome["params_sha256"]


def test_a_run_can_choose_the_lowest_and_keeps_the_first_of_equals(start, monkeypatch):
    """By the values that validation had, not by those that it was expected to have."""
    objective = Classification()
    objective.select, objective.higher_is_better = "loss", False
    run = start("run", objective)
    values = iter([0.5, 1 / 3, 1 / 3, 0.75, 0.4, 9.0])
    evaluate = run._evaluate
    monkeypatch.setattr(
        run, "_evaluate", lambda *a: {**(evaluate(*a) or {}), "loss": next(values)}
    )
    outcome = run.fit()
    assert (outcome["metric"], outcome["validation_loss"]) == ("loss", 1 / 3)
    assert outcome["best_step"] == 16
    assert outcome["test_loss"] == 9.0


def test_the_share_is_measured(start):
    run = start("share")
    run.saving_seconds, run.saved_at = 1.0, loop.time.monotonic() - 19
    assert not run._worth_saving()
    run.saved_at -= 2
    assert run._worth_saving()
    run.writer.close()


def test_it_begins_with_the_weights_that_it_is_given_once(start, monkeypatch):
    calls = []

    def zeros(fresh):
        calls.append(1)
        return jax.tree.map(lambda x: x * 0, fresh)

    run = start(start=zeros)
    assert not any(leaf.any() for leaf in jax.tree.leaves(run.state.weights.params))
    fit_until(run, 16, monkeypatch)
    start(start=zeros).fit()
    assert len(calls) == 1
