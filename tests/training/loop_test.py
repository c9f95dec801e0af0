"""A run: what it writes, that it resumes bit-equal, that it stops as it should."""

import dataclasses
import functools
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.classifiers import SequenceClassifier
from nystromformer.encoder import EncoderConfig
from nystromformer.errors import ConfigError, Interrupted
from nystromformer.training import loop
from nystromformer.training.checkpoint import (
    delete_steps,
    load_weights,
    saved_steps,
    weights_sha256,
)
from nystromformer.training.evaluate import evaluate
from nystromformer.training.loop import Run, open_run, train
from nystromformer.training.masked import MaskedTokens
from nystromformer.training.objective import Classification
from nystromformer.training_config import TrainConfig
from tests.training import denoising_cases
from tests.training.conftest import (
    CLASSES,
    LENGTH,
    VOCAB,
    BagOfTokens,
    flip_a_bit,
    make_split,
    with_functions,
)
from tests.training.metrics_file import rows_of

IN_PARTS = {"grad_accum_steps": 2, "length_buckets": 3}


def train_until(run: Run, step: int) -> None:
    """Stops the run as soon as it has reached the step, as SIGTERM does."""
    with pytest.raises(Interrupted, match="stopped by SIGTERM at step"):
        train(run, should_stop=lambda: signal.SIGTERM if run.step >= step else 0)


def assert_same_outcome(outcome: dict, expected: dict) -> None:
    assert outcome["params_sha256"] == expected["params_sha256"]
    assert outcome["test_loss"] == expected["test_loss"]


def best_sha256(run: Run) -> str:
    """The hash of the best weights that others can load."""
    weights, _ = load_weights(run.workdir / "best", run.state.weights)
    return weights_sha256(weights)


@pytest.fixture(scope="module")
def whole(run_in, tmp_path_factory):
    """The outcome and the rows of a run that nothing interrupts."""
    workdir = tmp_path_factory.mktemp("whole")
    outcome = train(run_in(workdir))
    return outcome, rows_of(workdir)


def test_train_learns_logs_validates_and_tests(whole):
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
def test_train_resumes_bit_equal(run_in, whole, tmp_path, step):
    """Stopped before the first validation, at one, and at the end."""
    expected, expected_rows = whole
    run = run_in(tmp_path)
    train_until(run, step)
    assert bool(run.record.best_step) == (step >= 8)
    if run.record.best_step:
        assert best_sha256(run) == weights_sha256(run.best)
    assert_same_outcome(train(run_in(tmp_path)), expected)
    assert rows_of(tmp_path) == expected_rows


def test_train_stopped_in_its_test_resumes_bit_equal(run_in, whole, tmp_path):
    expected, expected_rows = whole
    run = run_in(tmp_path)

    def should_stop():
        is_tested = run.step == 40 and run.record.evaluated == 40
        return signal.SIGTERM if is_tested and saved_steps(tmp_path)[0] == 40 else 0

    with pytest.raises(Interrupted, match="stopped by SIGTERM at step 40"):
        train(run, should_stop)

    resumed = run_in(tmp_path)
    assert resumed.step == 40
    assert_same_outcome(train(resumed), expected)
    assert rows_of(tmp_path) == expected_rows


def check_resumes_bit_equal(run_in, tmp_path, **changes) -> dict:
    """Compares a run with one that is stopped at step 16; returns its outcome."""
    expected = train(run_in(tmp_path / "whole", **changes))
    train_until(run_in(tmp_path / "stopped", **changes), 16)
    outcome = train(run_in(tmp_path / "stopped", **changes))
    assert_same_outcome(outcome, expected)
    assert rows_of(tmp_path / "stopped") == rows_of(tmp_path / "whole")
    return outcome


def test_train_in_parts_resumes_bit_equal(run_in, tmp_path):
    check_resumes_bit_equal(run_in, tmp_path, **IN_PARTS)


def another_of_its_class(batch, key):
    """Three tokens further, which has the same label, or as they are."""
    tokens = batch.inputs
    is_moved = jax.random.bernoulli(key) & (tokens + CLASSES < VOCAB)
    return batch._replace(inputs=jnp.where(is_moved, tokens + CLASSES, tokens))


# keys_test has the key of each example, and a run in parts resumes in a fast test.
@pytest.mark.slow
def test_train_with_augmentation_resumes_bit_equal(run_in, whole, tmp_path):
    outcome = check_resumes_bit_equal(run_in, tmp_path, augment=another_of_its_class)
    plain, _ = whole
    assert outcome["params_sha256"] != plain["params_sha256"]


def test_train_that_hides_tokens_resumes_bit_equal(run_in, tmp_path):
    check_resumes_bit_equal(
        run_in,
        tmp_path,
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
def test_train_trains_validates_and_resumes_with_remat(run_in, tmp_path):
    check_resumes_bit_equal(run_in, tmp_path, model=with_remat)


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
def test_train_of_a_model_with_a_random_stream_resumes_bit_equal(
    run_in, tmp_path, impl
):
    model = functools.partial(WithItsOwnDropout, impl)
    check_resumes_bit_equal(run_in, tmp_path, model=model)


@pytest.mark.parametrize(
    ("num_examples", "message"),
    [
        ({"validation": 0}, "the split validation has no examples"),
        ({"test": 0}, "the split test has no examples"),
        ({"train": 7}, r"train\.batch_size=8 is over the 7 training examples"),
    ],
)
def test_open_run_refuses_splits_that_are_too_small(
    run_in, tmp_path, num_examples, message
):
    programs = run_in(tmp_path).programs
    config = TrainConfig(batch_size=8, num_steps=40)
    sizes = {"train": 103, "validation": 23, "test": 29} | num_examples
    small_splits = {name: make_split(0, size) for name, size in sizes.items()}
    with pytest.raises(ConfigError, match=message):
        open_run(programs, config, small_splits, tmp_path)


def test_open_run_refuses_a_split_without_a_labelled_token(run_in, splits, tmp_path):
    run = run_in(tmp_path)
    unlabelled = make_split(0, 5)
    unlabelled.labels = -np.ones(unlabelled.inputs.shape, np.int32)
    with pytest.raises(ConfigError, match="no token of the split test has a label"):
        open_run(run.programs, run.config, splits | {"test": unlabelled}, tmp_path)

    masked = MaskedTokens(vocab_size=VOCAB, mask_token=VOCAB)
    programs = with_functions(run.programs, objective=masked)
    config = dataclasses.replace(run.config, num_steps=1, batch_size=2)
    with jax.disable_jit():  # nothing is compiled, and no step is taken
        open_run(programs, config, splits | {"test": unlabelled}, tmp_path)


def test_open_run_refuses_epochs_whose_steps_nobody_has_counted(
    run_in, splits, tmp_path
):
    programs = run_in(tmp_path).programs
    config = TrainConfig(batch_size=8, num_epochs=2.0)
    with pytest.raises(ConfigError, match=r"give train\.num_steps"):
        open_run(programs, config, splits, tmp_path)


class KilledError(Exception):
    """Stands for a SIGKILL, after which a run writes nothing more."""


def train_without_saving(run: Run, monkeypatch) -> None:
    """Trains to the end as a run does that is killed there before it saves."""

    def save_nothing(*args, **kwargs):
        pass

    def kill(*args):
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(loop.checkpoint, "save_step", save_nothing)
        patched.setattr(loop, "measure_tests", kill)
        with pytest.raises(KilledError):
            train(run)


@pytest.mark.parametrize(
    ("step", "resumed_steps"), [(0, range(1)), (20, range(20, 24))]
)
def test_train_repeats_what_was_lost_since_the_checkpoint(
    run_in, whole, tmp_path, monkeypatch, step, resumed_steps
):
    """The best weights on disk may be newer than the checkpoint, or alone."""
    expected, expected_rows = whole
    if step:
        train_until(run_in(tmp_path), step)
    train_without_saving(run_in(tmp_path), monkeypatch)

    run = run_in(tmp_path)
    assert run.step in resumed_steps
    assert_same_outcome(train(run), expected)
    assert best_sha256(run) == expected["params_sha256"]
    assert rows_of(tmp_path) == expected_rows


def test_delete_steps_leaves_the_best_weights(run_in, tmp_path):
    outcome = train(run_in(tmp_path))
    run = run_in(tmp_path)  # as after a kill before the result was written
    assert train(run)["examples_per_second"] == outcome["examples_per_second"]
    delete_steps(run.workdir)
    assert saved_steps(run.workdir) == []
    assert best_sha256(run) == outcome["params_sha256"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_train_passes_over_a_damaged_checkpoint(run_in, whole, tmp_path, capsys):
    expected, expected_rows = whole
    train_until(run_in(tmp_path), 30)
    newest, older = saved_steps(tmp_path)
    flip_a_bit(tmp_path / "checkpoints" / str(newest) / "state")

    run = run_in(tmp_path)
    assert run.step == older
    printed = capsys.readouterr().out
    assert f"checkpoints/{newest} is damaged: " in printed
    assert f"; going back to step {older}\n" in printed
    train_until(run, older + 1)  # saves beside the damaged one

    run = run_in(tmp_path)
    assert older < run.step < newest
    assert_same_outcome(train(run), expected)
    assert rows_of(tmp_path) == expected_rows


@pytest.mark.slow
def test_train_works_without_jit(run_in, tmp_path):
    """People debug so. The bits differ, since XLA fuses what it compiles."""
    sizes = {"num_steps": 1, "batch_size": 32}
    compiled = train(run_in(tmp_path / "compiled", **sizes))
    with jax.disable_jit():
        eager = train(run_in(tmp_path / "eager", **sizes))
    assert eager["test_loss"] == pytest.approx(compiled["test_loss"], rel=1e-5)


def test_train_can_choose_the_lowest_and_keeps_the_first_of_equals(
    run_in, tmp_path, monkeypatch
):
    """What counts is what validation measured, whatever the objective promised."""
    objective = Classification()
    objective.select = "loss"
    objective.higher_is_better = False
    run = run_in(tmp_path, objective=objective)
    losses = iter([0.5, 1 / 3, 1 / 3, 0.75, 0.4, 9.0])  # of the test at last

    def evaluate_and_replace_the_loss(*args, **kwargs):
        metrics = evaluate(*args, **kwargs)
        assert metrics is not None
        return metrics | {"loss": next(losses)}

    monkeypatch.setattr(loop, "evaluate", evaluate_and_replace_the_loss)
    outcome = train(run)
    assert outcome["metric"] == "loss"
    assert outcome["validation_loss"] == 1 / 3
    assert outcome["best_step"] == 16
    assert outcome["test_loss"] == 9.0


def test_open_run_begins_with_init_weights_once(run_in, tmp_path):
    calls = []

    def zeros(fresh):
        calls.append(1)
        return jax.tree.map(lambda x: x * 0, fresh)

    run = run_in(tmp_path, init_weights=zeros)
    assert not any(leaf.any() for leaf in jax.tree.leaves(run.state.weights.params))
    train_until(run, 16)
    train(run_in(tmp_path, init_weights=zeros))
    assert len(calls) == 1
