"""train.py --seeds: several seeds of small ListOps, each in its own workdir."""

import json
import signal
import time
from types import SimpleNamespace

import pytest
from etils import epath

from lra_tasks.errors import DataError
from nystromformer.errors import ConfigError, NotFiniteError
from nystromformer.experiments import run_seeds as run_seeds_module
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.run_seeds import run_seeds
from nystromformer.experiments.trained_run import load_run
from nystromformer.training import seeds
from nystromformer.training.checkpoint import saved_steps
from tests.commands import refused
from tests.small import make_config, numbers, result_of
from tests.tolerance import assert_close_rows


def together_args(commands, folder) -> tuple[str, ...]:
    """The arguments of train.py for the seeds 0 and 1, in folders of their numbers."""
    return commands.train_args(folder / "{seed}", "--seeds=0,1")


@pytest.fixture(scope="module")
def together(commands, tmp_path_factory):
    """The folder of two seeds that nothing interrupts, and what they printed."""
    folder = tmp_path_factory.mktemp("together")
    done = commands.run("train.py", *together_args(commands, folder))
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def comparable(workdir) -> list[dict]:
    """The numbers of a run, without the bits of weights, which rounding has changed."""
    left_out = {"params_sha256", "compiled_bytes", "seeds_together"}
    return [
        {key: row[key] for key in row.keys() - left_out} for row in numbers(workdir)
    ]


def assert_is_run_of_seed(workdir, expected_workdir, seed):
    """Compares a run with that of its seed alone: its numbers, files and config."""
    rows = comparable(workdir)
    for row, expected_row in zip(rows, comparable(expected_workdir), strict=True):
        assert_close_rows(row, expected_row)
    names = {path.name for path in workdir.iterdir()}
    assert names == {path.name for path in expected_workdir.iterdir()}
    config, expected = (
        json.loads((folder / "config.json").read_text())
        for folder in (workdir, expected_workdir)
    )
    expected["overrides"]["train.seed"] = seed  # a command may leave out the default
    assert config == expected
    assert load_run(workdir).config.train.seed == seed


def test_train_seeds_gives_the_run_of_a_seed_alone(together, finished):
    folder, printed = together
    assert_is_run_of_seed(folder / "0", finished[0], seed=0)
    assert "seeds 0, 1 together on CPU" in printed
    for seed in (0, 1):
        assert result_of(folder / str(seed))["seeds_together"] == [0, 1]
        assert f"nystrom, seed {seed}: best validation accuracy" in printed


@pytest.mark.slow
def test_train_seeds_gives_the_run_of_another_seed_alone(commands, together, tmp_path):
    alone = commands.train(tmp_path, "--config.train.seed=1")
    assert alone.returncode == 0, alone.stderr
    assert_is_run_of_seed(together[0] / "1", tmp_path, seed=1)


def test_train_seeds_leaves_out_what_is_finished(commands, together):
    folder, _ = together
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = commands.run("train.py", *together_args(commands, folder))
    assert again.returncode == 0, again.stderr
    assert again.stdout.splitlines() == [
        f"{folder}/{seed} is finished; delete it to run again" for seed in (0, 1)
    ]
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.slow
def test_train_seeds_killed_go_on_to_the_same_bits(commands, together, tmp_path):
    args = together_args(commands, tmp_path)
    process = commands.start("train.py", *args)
    while not any(saved_steps(tmp_path / "1")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    resumed = commands.run("train.py", *args)
    assert "resuming from step" in resumed.stdout, resumed.stderr
    for seed in ("0", "1"):
        assert numbers(tmp_path / seed) == numbers(together[0] / seed)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=0,1", "--sequence_parallelism=2"], "on one device: leave out"),
        (["--seeds=0,1", "--distributed"], "on one device: leave out --distributed"),
        (["--seeds=0,1", "--config.train.seed=3"], "both set train.seed; leave one"),
        (["--seeds=0,0"], "give different seeds"),
        (["--seeds=0,one"], "train.seed"),
        (
            ["--seeds=0,1", "--config.train.length_buckets=4"],
            "together with train.length_buckets=4: set it to 1, or train each seed by",
        ),
    ],
)
def test_train_seeds_refuses_in_one_line(commands, tmp_path, flags, message):
    args = commands.train_args(tmp_path / "{seed}", *flags)
    assert message in refused(commands.run("train.py", *args))
    assert not list(tmp_path.iterdir())


def test_train_seeds_needs_a_workdir_for_each(commands, tmp_path):
    args = commands.train_args(tmp_path / "x", "--seeds=0,1")
    assert "and {seed} in the workdir" in refused(commands.run("train.py", *args))


@pytest.fixture
def experiments(tmp_path):
    """A small experiment of four steps, with two seeds."""
    settings = {
        "task__num_train": 64,
        "task__num_validation": 10,
        "task__num_test": 10,
        "task__data_dir": str(tmp_path / "data"),
        "model__num_layers": 1,
        "optimizer__warmup_steps": 1,
        "train__num_steps": 4,
        "train__batch_size": 8,
    }
    return [
        Experiment(make_config("identity,quick", train__seed=seed, **settings))
        for seed in range(2)
    ]


@pytest.fixture
def workdirs(tmp_path):
    return [epath.Path(tmp_path / str(seed)) for seed in range(2)]


def load_nothing(_):
    raise DataError("the data were loaded")


def test_run_seeds_refuses_before_it_loads(
    experiments, workdirs, monkeypatch, tmp_path
):
    monkeypatch.setattr(Experiment, "load", load_nothing)
    with monkeypatch.context() as patch:
        patch.setattr(
            run_seeds_module, "make_run_mesh", lambda _: SimpleNamespace(size=4)
        )
        with pytest.raises(ConfigError, match="on one device, and here are 4: choose"):
            run_seeds(experiments, workdirs)
    assert not list(tmp_path.iterdir())

    (workdirs[1] / "checkpoints" / "20").mkdir(parents=True)
    (workdirs[1] / "config.json").write_text(
        json.dumps(experiments[1].config.to_mapping())
    )
    message = f"together: {workdirs[0]} has none, {workdirs[1]} has 20; train each by"
    with pytest.raises(ConfigError, match=message):
        run_seeds(experiments, workdirs)


def test_run_seeds_leaves_out_a_seed_that_has_met_a_nan(
    experiments, workdirs, monkeypatch, capsys
):
    check_finite = seeds.check_finite

    def fail_seed_1(run, finite):
        # At the last step, so that nothing is compiled for the other seed alone.
        if run.config.seed == 1 and run.step == 4:
            raise NotFiniteError(f"step {run.step}: not finite: the loss")
        check_finite(run, finite)

    monkeypatch.setattr(seeds, "check_finite", fail_seed_1)
    with pytest.raises(NotFiniteError, match=r"^seed 1: step 4: not finite: the loss$"):
        run_seeds(experiments, workdirs)
    failure = workdirs[1] / "failed.txt"
    assert failure.read_text() == "step 4: not finite: the loss"
    assert [(x / "result.json").exists() for x in workdirs] == [True, False]

    capsys.readouterr()
    run_seeds(experiments, workdirs)
    assert capsys.readouterr().out.splitlines() == [
        f"{workdirs[0]} is finished; delete it to run again",
        f"{workdirs[1]} has failed, {failure.read_text()}; delete {failure} to retry",
    ]
