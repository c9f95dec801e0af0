"""A run: what it writes, that it resumes bit-equal, that it stops as it should."""

import json
import os
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from nystromformer.config import TrainConfig
from nystromformer.training import loop
from nystromformer.training.checkpoint import (
    CheckpointError,
    load_weights,
    saved_steps,
    weights_sha256,
)
from nystromformer.training.interrupt import Interrupted
from nystromformer.training.loop import Trainer
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs

SIZES = {"seed": 0, "batch_size": 8, "num_steps": 40}
SIZES |= {"eval_every": 8, "log_every": 5, "checkpoint_every": 12}
SCHEDULE = TrainConfig(**SIZES)
TIMES = ("examples_per_second",)


@pytest.fixture
def start(make_model, optimizer, splits, tmp_path):
    """Makes the run in a workdir of this name, new or resumed."""

    def start(
        name="run", objective=None, schedule=SCHEDULE, splits=splits, **options
    ) -> Trainer:
        workdir, objective = tmp_path / name, objective or Classification()
        workdir.mkdir(exist_ok=True)
        programs = Programs.make(make_model, objective, optimizer, schedule)
        return Trainer(programs, schedule, splits, workdir, **options)

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


def test_fit_learns_logs_validates_and_tests(start, tmp_path):
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
def test_fit_resumes_bit_equal(start, tmp_path, monkeypatch, step):
    whole = start("whole").fit()
    fit_until(start("stopped"), step, monkeypatch)
    resumed = start("stopped").fit()
    for name in ("params_sha256", "test_loss", "compiled_bytes"):
        assert resumed[name] == whole[name]
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")


def test_fit_on_fetched_data_gives_the_same_bits_and_resumes(
    start, splits, tmp_path, monkeypatch
):
    """Rows of a file are fetched in chunks; an example keeps its index in the split."""

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
    monkeypatch.setattr(loop, "MAX_CHUNK", 3)
    fit_until(start("mapped", Noisy(), splits=splits), 16, monkeypatch)
    found = start("mapped", Noisy(), splits=splits).fit()
    for name in ("params_sha256", "test_loss"):
        assert found[name] == whole[name]
    assert lines(tmp_path / "mapped") == lines(tmp_path / "whole")


def test_fit_in_parts_learns_and_resumes_bit_equal(start, monkeypatch):
    batching = {"grad_accum_steps": 2, "length_buckets": 3}
    in_parts = TrainConfig(**{**SIZES, **batching})
    whole = start("whole", schedule=in_parts).fit()
    assert whole["test_accuracy"] > 0.8
    at_once = start("at once").fit()  # which draws other dropout
    assert whole["params_sha256"] != at_once["params_sha256"]
    fit_until(start("stopped", schedule=in_parts), 16, monkeypatch)
    resumed = start("stopped", schedule=in_parts).fit()
    assert resumed["params_sha256"] == whole["params_sha256"]


def test_fit_repeats_what_was_lost_since_the_checkpoint(start, tmp_path, monkeypatch):
    whole = start("whole").fit()
    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_save", lambda _: None)
        patched.setattr(loop.Trainer, "_test", lambda self: None)
        start("lost").fit()  # as after a kill before the first checkpoint
    assert start("lost").fit()["params_sha256"] == whole["params_sha256"]
    assert lines(tmp_path / "lost") == lines(tmp_path / "whole")


def best_sha256(run: Trainer) -> str:
    """Of what others can load."""
    weights = load_weights(run.workdir / "best", run.state.weights)
    return weights_sha256(weights)


def test_delete_checkpoints_leaves_the_best_weights(start, tmp_path):
    outcome = start("kept").fit()
    run = start("kept")  # as after a kill before the result was written
    assert run.step == 40
    again = run.fit()
    for name in ("params_sha256", "test_loss", "examples_per_second"):
        assert again[name] == outcome[name]
    run.delete_checkpoints()
    assert saved_steps(tmp_path / "kept") == []
    assert best_sha256(run) == outcome["params_sha256"]


def test_best_weights_are_on_disk_at_every_checkpoint(start, monkeypatch):
    run = start("unfinished")
    fit_until(run, 20, monkeypatch)
    assert run.run_state.best_step in (8, 16)
    assert best_sha256(run) == weights_sha256(run.best)


def test_best_weights_of_a_checkpoint_survive_a_kill_before_the_next(
    start, monkeypatch
):
    """The best weights on disk may be newer than the checkpoint."""
    whole = start("whole").fit()
    fit_until(start("killed"), 20, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(loop.Checkpoints, "save", lambda *_: None)
        start("killed").fit()
    assert start("killed").step < 24
    again = start("killed")
    assert again.fit()["params_sha256"] == whole["params_sha256"]
    assert best_sha256(again) == whole["params_sha256"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fit_takes_the_older_checkpoint_where_the_newest_is_damaged(
    start, tmp_path, monkeypatch, capsys
):
    whole = start("whole").fit()
    fit_until(start("damaged"), 30, monkeypatch)
    newest, older = saved_steps(tmp_path / "damaged")
    folder = tmp_path / "damaged" / "checkpoints" / str(newest) / "state"
    largest = max(folder.rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    run = start("damaged")
    assert run.step == older
    assert f"{newest} is damaged: going on from step {older}" in capsys.readouterr().out
    assert run.fit()["params_sha256"] == whole["params_sha256"]
    assert lines(tmp_path / "damaged") == lines(tmp_path / "whole")


def test_trainer_refuses_other_data(start, monkeypatch):
    fit_until(start(data_sha256={"train": "a"}), 3, monkeypatch)
    with pytest.raises(CheckpointError, match="was trained on other data"):
        start(data_sha256={"train": "b"})


def test_fit_ends_with_an_error_where_the_workdir_is_deleted(start, tmp_path):
    run = start("gone")
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        run.fit()


def test_fit_works_without_jit(start):
    """As people debug; the bits differ, for XLA fuses what it compiles."""
    schedule = TrainConfig(**{**SIZES, "num_steps": 2})
    compiled = start("compiled", schedule=schedule).fit()
    with jax.disable_jit():
        found = start("eager", schedule=schedule).fit()
    assert found["compiled_bytes"] is None
    assert found["test_loss"] == pytest.approx(compiled["test_loss"], rel=1e-5)


def test_fit_can_choose_the_lowest_and_keeps_the_first_of_equals(start, monkeypatch):
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


def test_trainer_begins_with_the_weights_of_start_once(start, monkeypatch):
    calls = []

    def zeros(fresh):
        calls.append(1)
        return jax.tree.map(lambda x: x * 0, fresh)

    run = start(start=zeros)
    assert not any(leaf.any() for leaf in jax.tree.leaves(run.state.weights.params))
    fit_until(run, 16, monkeypatch)
    start(start=zeros).fit()
    assert len(calls) == 1
