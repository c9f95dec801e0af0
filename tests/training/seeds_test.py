"""Seeds that are trained together are what each of them is alone."""

import json
import signal
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer.errors import CheckpointError, Interrupted, NotFiniteError
from nystromformer.training import chunk_timer, loop, seeds
from nystromformer.training.checkpoint import load_weights, saved_steps
from nystromformer.training.data import train_example_ids
from nystromformer.training.loop import train
from nystromformer.training.objective import Classification
from nystromformer.training.output import Progress
from nystromformer.training.seeds import find_common_step, open_runs, train_seeds
from tests.tolerance import TOLERANCE, assert_close_rows, relative_error
from tests.training.conftest import (
    CLASSIFICATION,
    BagOfTokens,
    flip_a_bit,
    with_functions,
)
from tests.training.metrics_file import rows_of

SEEDS = (3, 5, 8)


@pytest.fixture(scope="module")
def open_seeds(run_in, splits):
    """Opens the runs of SEEDS below a folder, each in the one of its number."""

    def open_seeds(folder, model=BagOfTokens, objective=CLASSIFICATION):
        alone = [run_in(folder / str(x), model, objective, seed=x) for x in SEEDS]
        return open_runs(
            alone[0].programs,
            [run.config for run in alone],
            splits,
            [run.workdir for run in alone],
            settings=[None for _ in alone],
        )

    return open_seeds


def numbers(outcome):
    """The outcome of a run, without what depends on the clock and on rounding."""
    left_out = {
        "examples_per_second",
        "wall_seconds",
        "compiled_bytes",
        "params_sha256",
    }
    return {key: x for key, x in outcome.items() if key not in left_out}


@pytest.fixture(scope="module")
def together(open_seeds, tmp_path_factory):
    """Seeds that nothing interrupts: their folder, their outcomes, and what they show.

    `shown` has the examples per second of the progress bar.
    """
    folder = tmp_path_factory.mktemp("together")
    shown = []

    def update(self, step, values, throughput):
        shown.append(throughput)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "update", update)
        outcomes = train_seeds(open_seeds(folder))
    return SimpleNamespace(folder=folder, outcomes=outcomes, shown=shown)


def test_seeds_together_are_those_of_each_alone(run_in, together, tmp_path):
    losses = []
    for seed, outcome in zip(SEEDS, together.outcomes, strict=True):
        run = run_in(tmp_path / str(seed), seed=seed)
        expected = numbers(train(run))
        assert_close_rows(numbers(outcome), expected)
        expected_rows = rows_of(run.workdir)
        rows = rows_of(together.folder / str(seed))
        for row, expected_row in zip(rows, expected_rows, strict=True):
            assert_close_rows(row, expected_row)
        best, _ = load_weights(together.folder / f"{seed}/best", run.state.weights)
        for leaf, expected_leaf in zip(
            jax.tree.leaves(best), jax.tree.leaves(run.best), strict=True
        ):
            assert relative_error(leaf, expected_leaf) < TOLERANCE["float32"]
        losses.append(outcome["test_loss"])
    assert len(set(losses)) == len(SEEDS)


def test_seeds_write_the_examples_per_second_of_one_and_show_those_of_all(together):
    for seed in SEEDS:
        lines = (together.folder / f"{seed}/metrics.jsonl").read_text().splitlines()
        rates = [json.loads(line).get("examples_per_second") for line in lines]
        assert {3 * rate for rate in rates if rate} <= set(together.shown)


def test_seeds_count_the_examples_of_one_and_the_seconds_of_all_their_sessions(
    open_seeds, tmp_path, monkeypatch
):
    """A chunk has one step, as it lasts two seconds."""
    clock = SimpleNamespace(now=0.0)
    time = SimpleNamespace(monotonic=lambda: clock.now)
    for module in (chunk_timer, seeds):
        monkeypatch.setattr(module, "time", time)

    def open_slow_seeds():
        runs = open_seeds(tmp_path)
        programs = runs[0].programs

        def train_slowly(states, chunks):
            clock.now += 2.0
            return programs.train_chunks(states, chunks)

        runs[0].programs = with_functions(programs, train_chunks=train_slowly)
        return runs

    runs = open_slow_seeds()
    with pytest.raises(Interrupted):
        train_seeds(runs, lambda: signal.SIGTERM if runs[0].step >= 13 else 0)
    clock.now += 1e6
    outcomes = train_seeds(open_slow_seeds())
    assert [outcome["wall_seconds"] for outcome in outcomes] == [40 * 2.0] * len(SEEDS)
    assert {outcome["examples_per_second"] for outcome in outcomes} == {8 / 2.0}


def assert_same_bits(folder, outcomes, together):
    for seed, outcome, expected in zip(SEEDS, outcomes, together.outcomes, strict=True):
        assert outcome["params_sha256"] == expected["params_sha256"]
        assert numbers(outcome) == numbers(expected)
        assert rows_of(folder / str(seed)) == rows_of(together.folder / str(seed))


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "step", [pytest.param(3, marks=slow), 16, pytest.param(40, marks=slow)]
)
def test_seeds_stopped_by_a_signal_resume_bit_equal(
    open_seeds, together, tmp_path, step
):
    runs = open_seeds(tmp_path)
    with pytest.raises(Interrupted, match="stopped by SIGTERM at step"):
        train_seeds(runs, lambda: signal.SIGTERM if runs[0].step >= step else 0)
    resumed = open_seeds(tmp_path)
    assert {run.step for run in resumed} == {runs[0].step}
    assert_same_bits(tmp_path, train_seeds(resumed), together)


class KilledError(Exception):
    """Stands for a SIGKILL, after which a run writes nothing more."""


@pytest.mark.parametrize(
    ("num_saved", "newest_step", "common_step"), [(5, 12, 0), (11, 36, 24)]
)
def test_seeds_killed_between_their_checkpoints_go_on_from_the_last_of_all(
    open_seeds,
    together,
    tmp_path,
    monkeypatch,
    capsys,
    num_saved,
    newest_step,
    common_step,
):
    save_step = loop.checkpoint.save_step
    calls = []

    def save_or_kill(*args, **kwargs):
        if len(calls) == num_saved:
            raise KilledError
        calls.append(args)
        save_step(*args, **kwargs)

    runs = open_seeds(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(loop.checkpoint, "save_step", save_or_kill)
        with pytest.raises(KilledError):
            train_seeds(runs)
    resumed = open_seeds(tmp_path)
    assert {run.step for run in resumed} == {common_step}
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "goes back" in line] == [
        f"{tmp_path}/{seed} goes back from step {newest_step} to {common_step}, the "
        "last that all of these seeds have saved"
        for seed in SEEDS[:2]
    ]
    assert_same_bits(tmp_path, train_seeds(resumed), together)


def test_find_common_step_knows_runs_that_have_not_begun_together(tmp_path):
    saved = {
        **{"new": (), "begun": (0,), "killed": (0, 20)},
        **{"alone": (20,), "a": (20, 40), "b": (40, 53), "c": (60, 80)},
    }
    for name, steps in saved.items():
        for step in steps:
            (tmp_path / name / "checkpoints" / str(step)).mkdir(parents=True)

    def common_step(*names):
        return find_common_step([tmp_path / name for name in names])

    assert common_step("new", "begun", "killed") == 0
    assert common_step("killed", "alone", "a") == 20
    assert common_step("a", "b") == 40
    assert common_step("alone", "new") is None
    assert common_step("a", "new") is None
    assert common_step("a", "c") is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_open_runs_refuses_a_damaged_checkpoint_that_parts_them(open_seeds, tmp_path):
    runs = open_seeds(tmp_path)
    with pytest.raises(Interrupted):
        train_seeds(runs, lambda: signal.SIGTERM if runs[0].step >= 30 else 0)
    workdir = tmp_path / str(SEEDS[1])
    flip_a_bit(workdir / "checkpoints" / str(saved_steps(workdir)[0]) / "state")
    with pytest.raises(CheckpointError, match="train each of them by itself once"):
        open_seeds(tmp_path)


class NanAtABatch(Classification):
    """Gives NaN at the batch of SEEDS[1] at step 14 of training."""

    def __call__(self, model, batch, key):
        bad_ids = train_example_ids(SEEDS[1], 13, 1, num_examples=103, batch_size=8)
        sums = super().__call__(model, batch, key)
        is_bad = (batch.example_ids == bad_ids[0]).all() & (key is not None)
        total, weight = sums["loss"]
        return sums | {"loss": (total * jnp.where(is_bad, jnp.nan, 1), weight)}


def test_seeds_go_on_without_one_that_meets_a_nan(
    open_seeds, together, tmp_path, capsys
):
    failed = []
    runs = open_seeds(tmp_path, objective=NanAtABatch())
    outcomes = train_seeds(
        runs, on_failure=lambda run, error: failed.append((run.config.seed, error))
    )
    message = "step 14: not finite: the loss, the gradient of embedding.embedding, "
    assert isinstance(outcomes[1], NotFiniteError)
    assert str(outcomes[1]).startswith(message)
    assert failed == [(SEEDS[1], outcomes[1])]
    line = f"seed {SEEDS[1]}: stopped, the others go on: {message}"
    assert line in capsys.readouterr().out
    assert saved_steps(runs[1].workdir) == [12, 0]
    for i in (0, 2):
        assert_close_rows(numbers(outcomes[i]), numbers(together.outcomes[i]))


class WithItsOwnDropout(BagOfTokens):
    """Draws from a random stream of its own, as flax's layers do."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.dropout = nnx.Dropout(0.25, rngs=nnx.Rngs(0))

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        return self.dropout(logits, deterministic=dropout_rng is None)


@pytest.mark.slow
def test_seeds_of_a_model_with_a_random_stream_are_those_of_each_alone(
    open_seeds, run_in, tmp_path
):
    outcomes = train_seeds(open_seeds(tmp_path, model=WithItsOwnDropout))
    alone = run_in(tmp_path / "alone", WithItsOwnDropout, seed=SEEDS[2])
    assert_close_rows(numbers(outcomes[2]), numbers(train(alone)))
