"""A run: what it writes, that it resumes bit-equal, that it stops as it should."""

import functools
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from nystromformer.training.augmentation import Augmented

from nystromformer.encoder import EncoderConfig
from nystromformer.errors import ConfigError, Interrupted
from nystromformer.heads import SequenceClassifier
from nystromformer.training import loop
from nystromformer.training.checkpoint import load_weights, saved_steps, weights_sha256
from nystromformer.training.loop import Trainer
from nystromformer.training.objective import Classification
from nystromformer.training_config import TrainConfig
from tests.training import denoising_cases
from tests.training.conftest import (
    CLASSES,
    CLASSIFICATION,
    LENGTH,
    VOCAB,
    BagOfTokens,
    flip_a_bit,
    make_split,
)
from tests.training.metrics_file import rows_of

IN_PARTS = {"grad_accum_steps": 2, "length_buckets": 3}


def fit_until(run: Trainer, step: int, monkeypatch) -> None:
    """Sends this process SIGTERM as soon as the run has reached the step."""
    update = loop.Progress.update

    def update_and_stop(self, current_step, values, throughput):
        update(self, current_step, values, throughput)
        if current_step >= step:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Progress, "update", update_and_stop)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step"):
            run.fit()


def assert_same_outcome(outcome: dict, expected: dict) -> None:
    assert outcome["params_sha256"] == expected["params_sha256"]
    assert outcome["test_loss"] == expected["test_loss"]


def best_sha256(run: Trainer) -> str:
    """The hash of the best weights that others can load."""
    weights, _ = load_weights(run.workdir / "best", run.state.weights)
    return weights_sha256(weights)


@pytest.fixture(scope="module")
def whole(trainer_in, tmp_path_factory):
    """The outcome and the rows of a run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("whole")
    outcome = trainer_in(workdir).fit()
    return outcome, rows_of(workdir)


def test_fit_learns_logs_validates_and_tests(whole):
    outcome, rows = whole
    assert outcome["steps"] == 40
    assert outcome["test_accuracy"] > 0.8
    assert outcome["test_examples"] == 29
    assert outcome["compiled_bytes"] > 0
    train = [row for row in rows if row["split"] == "train"]
    validation = [row for row in rows if row["split"] == "validation"]
    [test] = [row for row in rows if row["split"] == "test"]
    assert [row["step"] for row in train] == list(range(5, 41, 5))
    assert [row["step"] for row in validation] == [8, 16, 24, 32, 40]
    assert {row["examples"] for row in validation} == {23}
    accuracies = [row["accuracy"] for row in validation]
    best = accuracies.index(max(accuracies))
    assert outcome["validation_accuracy"] == accuracies[best]
    assert outcome["best_step"] == validation[best]["step"]
    assert outcome["test_accuracy"] == test["accuracy"]


@pytest.mark.parametrize("step", [3, 16, 40])
def test_fit_resumes_bit_equal(trainer_in, whole, tmp_path, monkeypatch, step):
    """Stopped before the first validation, at one, and at the end."""
    expected, expected_rows = whole
    run = trainer_in(tmp_path)
    fit_until(run, step, monkeypatch)
    assert bool(run.run_state.best_step) == (step >= 8)
    if run.run_state.best_step:
        assert best_sha256(run) == weights_sha256(run.best)
    assert_same_outcome(trainer_in(tmp_path).fit(), expected)
    assert rows_of(tmp_path) == expected_rows


def test_fit_stopped_in_its_test_resumes_bit_equal(
    trainer_in, whole, tmp_path, monkeypatch
):
    expected, expected_rows = whole
    run = trainer_in(tmp_path)
    evaluate = run._evaluate

    def stop_and_evaluate(weights, split):
        if split == "test":
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(weights, split)

    monkeypatch.setattr(run, "_evaluate", stop_and_evaluate)
    with pytest.raises(Interrupted, match="stopped by SIGTERM at step 40"):
        run.fit()

    resumed = trainer_in(tmp_path)
    assert resumed.step == 40
    assert_same_outcome(resumed.fit(), expected)
    assert rows_of(tmp_path) == expected_rows


def check_resumes_bit_equal(trainer_in, tmp_path, monkeypatch, **changes) -> dict:
    """Compares a run with one that is stopped at step 16; returns its outcome."""
    expected = trainer_in(tmp_path / "whole", **changes).fit()
    fit_until(trainer_in(tmp_path / "stopped", **changes), 16, monkeypatch)
    outcome = trainer_in(tmp_path / "stopped", **changes).fit()
    assert_same_outcome(outcome, expected)
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")
    return outcome


def test_fit_in_parts_resumes_bit_equal(trainer_in, tmp_path, monkeypatch):
    check_resumes_bit_equal(trainer_in, tmp_path, monkeypatch, **IN_PARTS)


def another_of_its_class(tokens, key):
    """Three tokens further, which has the same label, or as they are."""
    is_moved = jax.random.bernoulli(key) & (tokens + CLASSES < VOCAB)
    return jnp.where(is_moved, tokens + CLASSES, tokens)


# keys_test has the key of each example, and a run in parts resumes in a fast test.
@pytest.mark.slow
def test_fit_with_augmentation_resumes_bit_equal(
    trainer_in, whole, tmp_path, monkeypatch
):
    augmented = Augmented(CLASSIFICATION, [another_of_its_class])
    outcome = check_resumes_bit_equal(
        trainer_in, tmp_path, monkeypatch, objective=augmented
    )
    plain, _ = whole
    assert outcome["params_sha256"] != plain["params_sha256"]


def test_fit_that_hides_tokens_resumes_bit_equal(trainer_in, tmp_path, monkeypatch):
    check_resumes_bit_equal(
        trainer_in,
        tmp_path,
        monkeypatch,
        model=denoising_cases.make_model,
        objective=denoising_cases.make_objective(),
    )


def with_remat(rngs):
    config = EncoderConfig(
        vocab_size=VOCAB,
        max_length=LENGTH,
        model_dim=8,
        mlp_dim=8,
        num_layers=1,
        attention="identity",
        remat="block",
    )
    return SequenceClassifier(config, num_classes=CLASSES, rngs=rngs)


# encoder_remat_test holds that remat changes nothing.
@pytest.mark.slow
def test_fit_trains_validates_and_resumes_with_remat(trainer_in, tmp_path, monkeypatch):
    check_resumes_bit_equal(trainer_in, tmp_path, monkeypatch, model=with_remat)


class WithItsOwnDropout(BagOfTokens):
    """Draws from a random stream of its own, as flax's layers do."""

    def __init__(self, impl, rngs):
        super().__init__(rngs)
        key = jax.random.key(0, impl=impl)
        self.dropout = nnx.Dropout(0.25, rngs=nnx.Rngs(key))

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        return self.dropout(logits, deterministic=dropout_rng is None)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_fit_of_a_model_with_a_random_stream_resumes_bit_equal(
    trainer_in, tmp_path, monkeypatch, impl
):
    model = functools.partial(WithItsOwnDropout, impl)
    check_resumes_bit_equal(trainer_in, tmp_path, monkeypatch, model=model)


@pytest.mark.parametrize(
    ("num_examples", "message"),
    [
        ({"validation": 0}, "the split validation has no examples"),
        ({"test": 0}, "the split test has no examples"),
        ({"train": 7}, r"train\.batch_size=8 is over the 7 training examples"),
    ],
)
def test_trainer_refuses_splits_that_are_too_small(
    trainer_in, tmp_path, num_examples, message
):
    programs = trainer_in(tmp_path).programs
    config = TrainConfig(batch_size=8, num_steps=40)
    sizes = {"train": 103, "validation": 23, "test": 29} | num_examples
    small_splits = {name: make_split(0, size) for name, size in sizes.items()}
    with pytest.raises(ConfigError, match=message):
        Trainer(programs, config, small_splits, tmp_path)


def test_trainer_refuses_a_split_without_a_labelled_token(trainer_in, splits, tmp_path):
    run = trainer_in(tmp_path)
    unlabelled = make_split(0, 5)
    unlabelled.labels = -np.ones(unlabelled.inputs.shape, np.int32)
    with pytest.raises(ConfigError, match="no token of the split test has a label"):
        Trainer(run.programs, run.config, splits | {"test": unlabelled}, tmp_path)


def test_trainer_refuses_epochs_whose_steps_nobody_has_counted(
    trainer_in, splits, tmp_path
):
    programs = trainer_in(tmp_path).programs
    config = TrainConfig(batch_size=8, num_epochs=2.0)
    with pytest.raises(ConfigError, match=r"give train\.num_steps"):
        Trainer(programs, config, splits, tmp_path)


class KilledError(Exception):
    """Stands for a SIGKILL, after which a run writes nothing more."""


def fit_without_saving(run: Trainer, monkeypatch) -> None:
    """Trains to the end as a run does that is killed there before it saves."""

    def save_nothing(*args, **kwargs):
        pass

    def kill(self):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(loop.checkpoint, "save_step", save_nothing)
        patched.setattr(Trainer, "_test", kill)
        with pytest.raises(KilledError):
            run.fit()


@pytest.mark.parametrize(
    ("step", "resumed_steps"), [(0, range(1)), (20, range(20, 24))]
)
def test_fit_repeats_what_was_lost_since_the_checkpoint(
    trainer_in, whole, tmp_path, monkeypatch, step, resumed_steps
):
    """The best weights on disk may be newer than the checkpoint, or alone."""
    expected, expected_rows = whole
    if step:
        fit_until(trainer_in(tmp_path), step, monkeypatch)
    fit_without_saving(trainer_in(tmp_path), monkeypatch)

    run = trainer_in(tmp_path)
    assert run.step in resumed_steps
    assert_same_outcome(run.fit(), expected)
    assert best_sha256(run) == expected["params_sha256"]
    assert rows_of(tmp_path) == expected_rows


def test_delete_checkpoints_leaves_the_best_weights(trainer_in, tmp_path):
    outcome = trainer_in(tmp_path).fit()
    run = trainer_in(tmp_path)  # as after a kill before the result was written
    assert run.fit()["examples_per_second"] == outcome["examples_per_second"]
    run.delete_checkpoints()
    assert saved_steps(run.workdir) == []
    assert best_sha256(run) == outcome["params_sha256"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_fit_passes_over_a_damaged_checkpoint(
    trainer_in, whole, tmp_path, monkeypatch, capsys
):
    expected, expected_rows = whole
    fit_until(trainer_in(tmp_path), 30, monkeypatch)
    newest, older = saved_steps(tmp_path)
    flip_a_bit(tmp_path / "checkpoints" / str(newest) / "state")

    run = trainer_in(tmp_path)
    assert run.step == older
    assert f"checkpoints/{newest} is missing, damaged" in capsys.readouterr().out
    fit_until(run, older + 1, monkeypatch)  # saves beside the damaged one

    run = trainer_in(tmp_path)
    assert older < run.step < newest
    assert_same_outcome(run.fit(), expected)
    assert rows_of(tmp_path) == expected_rows


@pytest.mark.slow
def test_fit_works_without_jit(trainer_in, tmp_path):
    """People debug so. The bits differ, since XLA fuses what it compiles."""
    sizes = {"num_steps": 1, "batch_size": 32}
    compiled = trainer_in(tmp_path / "compiled", **sizes).fit()
    with jax.disable_jit():
        eager = trainer_in(tmp_path / "eager", **sizes).fit()
    assert eager["test_loss"] == pytest.approx(compiled["test_loss"], rel=1e-5)


def test_fit_can_choose_the_lowest_and_keeps_the_first_of_equals(
    trainer_in, tmp_path, monkeypatch
):
    """What counts is what validation measured, whatever the objective promised."""
    objective = Classification()
    objective.select = "loss"
    objective.higher_is_better = False
    run = trainer_in(tmp_path, objective=objective)
    losses = iter([0.5, 1 / 3, 1 / 3, 0.75, 0.4, 9.0])  # of the test at last
    evaluate = run._evaluate

    def evaluate_and_replace_the_loss(weights, split):
        metrics = evaluate(weights, split)
        assert metrics is not None
        return metrics | {"loss": next(losses)}

    monkeypatch.setattr(run, "_evaluate", evaluate_and_replace_the_loss)
    outcome = run.fit()
    assert outcome["metric"] == "loss"
    assert outcome["validation_loss"] == 1 / 3
    assert outcome["best_step"] == 16
    assert outcome["test_loss"] == 9.0


def test_trainer_begins_with_init_weights_once(trainer_in, tmp_path, monkeypatch):
    calls = []

    def zeros(fresh):
        calls.append(1)
        return jax.tree.map(lambda x: x * 0, fresh)

    run = trainer_in(tmp_path, init_weights=zeros)
    assert not any(leaf.any() for leaf in jax.tree.leaves(run.state.weights.params))
    fit_until(run, 16, monkeypatch)
    trainer_in(tmp_path, init_weights=zeros).fit()
    assert len(calls) == 1
