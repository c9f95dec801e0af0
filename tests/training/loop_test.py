"""A run: what it writes, that it resumes bit-equal, that it stops as it should."""

import json
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.config import TrainConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.errors import NotFiniteError
from nystromformer.heads import SequenceClassifier
from nystromformer.training import loop
from nystromformer.training.augmentation import Augmented
from nystromformer.training.checkpoint import load_weights, saved_steps, weights_sha256
from nystromformer.training.interrupt import Interrupted
from nystromformer.training.loop import Trainer
from nystromformer.training.objective import Classification, label_sums
from nystromformer.training.step import Programs
from tests.training.conftest import CLASSES, LENGTH, VOCAB, BagOfTokens, flip_a_bit

SIZES = {"seed": 0, "batch_size": 8, "num_steps": 40}
SIZES |= {"eval_every": 8, "log_every": 5, "checkpoint_every": 12}
IN_PARTS = {"grad_accum_steps": 2, "length_buckets": 3}


@pytest.fixture
def start(optimizer, splits, tmp_path):
    """Makes the run in a workdir of this name, new or resumed."""

    def start(
        name="run", objective=None, model=BagOfTokens, start=None, **changes
    ) -> Trainer:
        workdir, schedule = tmp_path / name, TrainConfig(**SIZES | changes)
        workdir.mkdir(exist_ok=True)
        batching = {key: getattr(schedule, key) for key in IN_PARTS}
        programs = Programs(model, objective or Classification(), optimizer, **batching)
        return Trainer(programs, schedule, splits, workdir, start)

    return start


def lines(run_dir) -> list[dict]:
    """metrics.jsonl, without what a clock says."""
    text = (run_dir / "metrics.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [{**line, "examples_per_second": 0} for line in found]


def fit_until(run: Trainer, step: int, monkeypatch) -> None:
    """Sends this process SIGTERM as soon as the run has reached the step."""
    update = loop.Progress.update

    def update_and_stop(self, at, values, throughput):
        update(self, at, values, throughput)
        if at >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Progress, "update", update_and_stop)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step"):
            run.fit()


def assert_same(one: dict, other: dict) -> None:
    for name in ("params_sha256", "test_loss"):
        assert one[name] == other[name]


def best_sha256(run: Trainer) -> str:
    """Of what others can load."""
    weights, _ = load_weights(run.workdir / "best", run.state.weights)
    return weights_sha256(weights)


def test_fit_learns_logs_validates_and_tests(start, tmp_path):
    outcome = start("whole").fit()
    assert outcome["steps"] == 40
    assert outcome["test_accuracy"] > 0.8
    assert outcome["test_examples"] == 29
    assert outcome["compiled_bytes"] > 0
    train, validation, test = (
        [line for line in lines(tmp_path / "whole") if line["split"] == split]
        for split in ("train", "validation", "test")
    )
    assert [line["step"] for line in train] == list(range(5, 41, 5))
    assert [line["step"] for line in validation] == [8, 16, 24, 32, 40]
    assert {line["examples"] for line in validation} == {23}
    accuracies = [line["accuracy"] for line in validation]
    assert outcome["validation_accuracy"] == max(accuracies)
    assert outcome["best_step"] == validation[accuracies.index(max(accuracies))]["step"]
    assert test[0]["accuracy"] == outcome["test_accuracy"]


@pytest.mark.parametrize(
    ("step", "batching"), [(3, {}), (16, {}), (40, {}), (16, IN_PARTS)]
)
def test_fit_resumes_bit_equal(start, tmp_path, monkeypatch, step, batching):
    whole = start("whole", **batching).fit()
    run = start("stopped", **batching)
    fit_until(run, step, monkeypatch)
    if run.run_state.best_step:
        assert best_sha256(run) == weights_sha256(run.best)
    assert_same(start("stopped", **batching).fit(), whole)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")


def another_of_its_class(tokens, key):
    """Three tokens further, which has the same label, or as they are."""
    is_moved = jax.random.bernoulli(key) & (tokens + CLASSES < VOCAB)
    return jnp.where(is_moved, tokens + CLASSES, tokens)


def test_fit_with_augmentation_resumes_bit_equal(start, tmp_path, monkeypatch):
    augmented = Augmented(Classification(), [another_of_its_class])
    whole = start("whole", augmented).fit()
    fit_until(start("stopped", augmented), 16, monkeypatch)
    assert_same(start("stopped", augmented).fit(), whole)
    assert lines(tmp_path / "stopped") == lines(tmp_path / "whole")
    assert start("plain").fit()["params_sha256"] != whole["params_sha256"]


def test_fit_repeats_what_was_lost_since_the_checkpoint(start, tmp_path, monkeypatch):
    """The best weights on disk may be newer than the checkpoint, or than none."""
    whole = start("whole").fit()
    for step in (0, 20):
        if step:
            fit_until(start(f"lost {step}"), step, monkeypatch)
        with monkeypatch.context() as patched:  # as if killed before it could save
            patched.setattr(loop.checkpoint, "save_step", lambda *_: None)
            patched.setattr(loop.Trainer, "_test", lambda self: None)
            start(f"lost {step}").fit()
        again = start(f"lost {step}")
        assert again.step == 0 if step == 0 else 20 <= again.step < 24
        assert_same(again.fit(), whole)
        assert best_sha256(again) == whole["params_sha256"]
        assert lines(tmp_path / f"lost {step}") == lines(tmp_path / "whole")


def test_delete_checkpoints_leaves_the_best_weights(start):
    outcome = start().fit()
    run = start()  # as after a kill before the result was written
    assert run.fit()["examples_per_second"] == outcome["examples_per_second"]
    run.delete_checkpoints()
    assert saved_steps(run.workdir) == []
    assert best_sha256(run) == outcome["params_sha256"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fit_passes_over_a_damaged_checkpoint(start, tmp_path, monkeypatch, capsys):
    whole = start("whole").fit()
    fit_until(start("damaged"), 30, monkeypatch)
    newest, older = saved_steps(tmp_path / "damaged")
    flip_a_bit(tmp_path / "damaged" / "checkpoints" / str(newest) / "state")
    run = start("damaged")
    assert run.step == older
    assert f"checkpoints/{newest} is missing, damaged" in capsys.readouterr().out
    fit_until(run, older + 1, monkeypatch)  # beside the damaged one
    again = start("damaged")
    assert older < again.step < newest
    assert_same(again.fit(), whole)
    assert lines(tmp_path / "damaged") == lines(tmp_path / "whole")


class Poisoned(BagOfTokens):
    """Gives NaN at the 14th step of training, or wherever it is evaluated after it."""

    when: str

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        step = self.calls[...]  # of training, this one included
        bad = step == 14 if self.when == "training" else step > 14
        if (dropout_rng is None) == (self.when == "training"):
            return logits
        return logits * jnp.where(bad, jnp.nan, 1)


STOPPED = {
    "training": r"step 14: not finite: the loss, the gradient of embedding\.embedding, "
    r".*; last checkpoint: 12",
    "validation": "step 16: the validation loss is not finite",
}


@pytest.mark.parametrize("when", STOPPED)
def test_fit_stops_at_a_nan_and_leaves_a_whole_checkpoint(start, when):
    with pytest.raises(NotFiniteError, match=STOPPED[when]):
        start(model=type("P", (Poisoned,), {"when": when})).fit()
    again = start()
    assert again.step == 12
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(again.state))


class Selected(Classification):
    """Selects by the mean of a logit, a metric that may be NaN where no loss is."""

    select, metrics = "logit", ("loss", "accuracy", "logit")

    def __init__(self, is_nan):
        self.is_nan = is_nan

    def __call__(self, model, batch, key):
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        sums = label_sums(logits, batch.labels, batch.weights)
        value = jnp.where(self.is_nan(model.calls[...]), jnp.nan, logits[:, 0])
        sums["logit"] = (value * batch.weights).sum(), batch.weights.sum()
        return sums


def test_fit_passes_over_a_nan_of_the_selected_metric(start, tmp_path):
    """At the first two validations; then the best of the others is kept."""
    outcome = start("run", Selected(lambda step: step <= 16)).fit()
    rows = [line for line in lines(tmp_path / "run") if line["split"] == "validation"]
    values = {line["step"]: line["logit"] for line in rows}
    assert np.isnan([values[8], values[16]]).all()
    best = max((24, 32, 40), key=lambda step: values[step])
    assert outcome["best_step"] == best
    assert outcome["validation_logit"] == values[best]


def test_fit_stops_where_the_selected_metric_was_never_a_number(start):
    with pytest.raises(NotFiniteError, match="validation logit was never finite"):
        start("run", Selected(lambda step: step >= 0)).fit()


def with_remat(rngs):
    sizes = {"vocab_size": VOCAB, "max_length": LENGTH, "model_dim": 8, "mlp_dim": 8}
    config = EncoderConfig(**sizes, attention="identity", num_layers=1, remat="block")
    return SequenceClassifier(config, num_classes=CLASSES, rngs=rngs)


def test_fit_trains_validates_and_resumes_with_remat(start, monkeypatch):
    whole = start("whole", model=with_remat).fit()
    fit_until(start("stopped", model=with_remat), 16, monkeypatch)
    assert_same(start("stopped", model=with_remat).fit(), whole)


def test_fit_works_without_jit(start):
    """As people debug; the bits differ, for XLA fuses what it compiles."""
    compiled = start("compiled", num_steps=2).fit()
    with jax.disable_jit():
        found = start("eager", num_steps=2).fit()
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
