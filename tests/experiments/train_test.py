"""The main job as a person runs it: to the end, killed, stopped, and misused."""

import re
import shutil
import signal
import time

import pytest

from nystromformer.training.checkpoint import saved_steps
from tests.commands import ROOT, refused
from tests.small import losses, numbers, result_of


def start(commands, workdir):
    """Starts a run, and waits until it has written metrics."""
    process = commands.start("train.py", *commands.train_args(workdir))
    while not (workdir / "metrics.jsonl").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return process


def stop(process, signum) -> str:
    """Sends a signal, checks how the process ends, and returns what it printed."""
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    expected = -signum if signum == signal.SIGKILL else 128 + signum
    assert process.returncode == expected, (out, err)
    return out


def test_train_prints_its_test_accuracy_beside_its_floors(finished):
    workdir, printed = finished
    result = result_of(workdir)
    assert f"{result['num_params']:,} parameters" in printed
    assert f"test accuracy {result['test_accuracy']:.2%} (50 examples)" in printed
    assert {"majority class", "root operator"} <= {*result["floors"]}
    for name, accuracy in result["floors"].items():
        assert re.search(rf"floor: +{accuracy:.2%}  {name}", printed)
    assert result["command"].startswith("python ")


def test_train_prints_its_config_first(finished):
    _, printed = finished
    settings = ("task.max_length = 48", "model.num_layers = 1", "train.num_steps = 200")
    beginning = printed.partition("loading the data")[0]
    for setting in settings:
        assert f"config.{setting}\n" in beginning


def test_train_print_config_ends_without_data_or_a_folder(commands, tmp_path):
    fresh = commands.with_env(LRA_DATA_DIR=str(tmp_path / "data"))
    config = f"--config={ROOT}/configs/listops.py:softmax,quick"
    change = "--config.train.seed=7"
    done = fresh.run("train.py", config, change, "--print_config")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert all(line.startswith("config.") for line in lines)
    assert {
        "config.preset = 'quick'",
        "config.attention.name = 'softmax'",
        "config.task.data_dir = None",
        "config.train.seed = 7",
    } <= set(lines)
    assert not list(tmp_path.iterdir())


def test_train_says_that_a_run_is_finished_and_does_nothing(commands, finished):
    before = {path: path.stat().st_mtime_ns for path in finished[0].rglob("*")}
    again = commands.train(finished[0])
    assert "is finished" in again.stdout, again.stderr
    assert before == {x: x.stat().st_mtime_ns for x in finished[0].rglob("*")}


def test_evaluate_gives_the_numbers_of_a_moved_run(commands, finished, tmp_path):
    workdir = shutil.copytree(finished[0], tmp_path / "moved")
    result = result_of(workdir)
    test = commands.run("evaluate.py", f"--workdir={workdir}")
    expected = f"accuracy {result['test_accuracy']:.2%}, loss {result['test_loss']:.4f}"
    assert f"test {expected}, 50 examples" in test.stdout, test.stderr
    done = commands.run("evaluate.py", f"--workdir={workdir}", "--split=validation")
    accuracy = f"accuracy {result['validation_accuracy']:.2%}"
    assert f"validation {accuracy}" in done.stdout, done.stderr


def test_train_killed_goes_on_to_the_same_bits(commands, finished, tmp_path):
    process = start(commands, tmp_path)
    while not saved_steps(tmp_path):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    stop(process, signal.SIGKILL)
    resumed = commands.train(tmp_path)
    assert "resuming from step" in resumed.stdout, resumed.stderr
    assert numbers(tmp_path) == numbers(finished[0])


# loop_test stops a run by a signal and resumes it, workdir_test locks a folder and
# compares configs, and a run that is killed is resumed above.
@pytest.mark.slow
def test_train_saves_on_a_signal_and_lets_no_other_run_in(commands, finished, tmp_path):
    process = start(commands, tmp_path)
    process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
    second = commands.train(tmp_path)
    process.send_signal(signal.SIGCONT)
    assert f"another process is training in {tmp_path}" in refused(second)
    out = stop(process, signal.SIGTERM)
    step = int(re.search(r"stopped by SIGTERM at step (\d+); saved", out)[1])
    assert saved_steps(tmp_path)[0] == step
    changed = commands.train(tmp_path, "--config.train.seed=1")
    assert "another config: train.seed is 0 there, 1 here" in refused(changed)
    resumed = commands.with_env(PATH="/no/git").train(tmp_path)
    assert f"resuming from step {step}\n" in resumed.stdout
    assert numbers(tmp_path) == numbers(finished[0])
    result = result_of(tmp_path)
    assert [x["step"] for x in result["sessions"]] == [0, step]
    assert result["commit"] is None


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGALRM, signal.SIGUSR2])
def test_train_saves_on_every_signal_that_asks_to_stop(commands, tmp_path, signum):
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    assert f"stopped by {why} at step" in stop(start(commands, tmp_path), signum)
    assert saved_steps(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sequence_parallelism", [1, 2])
def test_train_shares_the_work_among_devices(
    commands, finished, tmp_path, sequence_parallelism
):
    four = commands.with_env(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4")
    done = four.train(tmp_path, f"--sequence_parallelism={sequence_parallelism}")
    assert done.returncode == 0, done.stderr
    mesh = {"data": 4 // sequence_parallelism, "seq": sequence_parallelism}
    assert result_of(tmp_path)["mesh"] == mesh
    devices = (
        f"4 devices in 1 process, each batch in {mesh['data']} parts, "
        f"each sequence in {mesh['seq']}\n"
    )
    assert devices in done.stdout
    assert losses(tmp_path)[:5] == pytest.approx(losses(finished[0])[:5], abs=1e-6)


SLOW_IMPORT = """
import contextlib
import time
from etils import epy

lazy_imports = epy.lazy_imports

@contextlib.contextmanager
def slow_lazy_imports(**callbacks):
    with lazy_imports(**callbacks):
        time.sleep(0.1)
        yield

epy.lazy_imports = slow_lazy_imports
"""


# All other runs load data and compile at once, with imports that take their usual time.
@pytest.mark.slow
def test_train_compiles_while_data_load_however_slowly_libraries_are_imported(
    commands, tmp_path
):
    """tensorflow-datasets replaces `builtins.__import__` while it is imported."""
    module = tmp_path / "slow_import.py"
    module.write_text(SLOW_IMPORT)
    fresh = commands.with_env(LRA_DATA_DIR=str(tmp_path / "data"))
    done = fresh.train(
        tmp_path / "run", f"--load={module}", "--config.train.num_steps=40"
    )
    assert done.returncode == 0, done.stderr


TIMER = """
import signal
signal.setitimer = lambda which, seconds: print("timer", which, seconds)
"""


def test_train_sets_a_timer_to_its_time_limit(commands, tmp_path):
    (tmp_path / "timer.py").write_text(TIMER)
    done = commands.run(
        "train.py",
        f"--config={ROOT}/configs/listops.py:identity,quick",
        "--print_config",
        "--max_minutes=0.5",
        f"--load={tmp_path}/timer.py",
    )
    assert "timer 0 30.0" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGALRM, signal.SIGUSR2])
def test_train_says_that_it_was_stopped_before_its_first_step(
    commands, tmp_path, signum
):
    module = tmp_path / "stopping.py"
    module.write_text(f"""
import os
from nystromformer.experiments import run
run.load_data = lambda *args, **options: os.kill(os.getpid(), {int(signum)})
""")
    done = commands.train(tmp_path / "run", f"--load={module}")
    assert (done.returncode, done.stderr) == (128 + signum, "")
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    line = f"stopped by {why} before the first step; nothing to save. Run the same"
    assert line in done.stdout.splitlines()[-1]


BAD = {
    "--config.task.name=listopps": "unknown task 'listopps'",
    "--config.train.num_step=1": 'Did you mean "num_steps" instead of "num_step"',
    "--config.train.colour=1": "no such key in the config: 'colour'",
    "--config.train.num_steps=many": "num_steps=many: must be an integer",
    "--config.train.num_epochs=2": "give config.train.num_steps or num_epochs, 0 for",
    "--config.train.batch_size=301": "over the 300 training examples",
    "--config.train.init_from=/no/such/run": "is not a run",
    "--workdir=": "give --workdir=DIR, the folder of the run",
    "--wrkdir=x": "Unknown command line flag 'wrkdir'. Did you mean: workdir",
    "--sequence_parallelism=3": "sequence_parallelism=3",
    "--sequence_parallelism=2 --config.train.length_buckets=2": (
        "--sequence_parallelism needs config.train.length_buckets=1"
    ),
    "--distributed --num_processes=2": "the processes did not find each other: ",
    "stray": "expected no arguments, got 'stray'",
    "--config=/no/such.py": "there is no config file /no/such.py",
    "--workdir=runs/[x]": "could not be read again: choose a path without",
}


# What config_file_test, points_test and experiment_test hold too is slow here.
FAST = (
    "--config.train.num_step=1",
    "--config.train.batch_size=301",
    "--wrkdir=x",
    "--distributed --num_processes=2",
    "stray",
)


@pytest.mark.parametrize(
    "change",
    [
        change if change in FAST else pytest.param(change, marks=pytest.mark.slow)
        for change in BAD
    ],
)
def test_train_rejects_bad_input_in_one_line_and_leaves_nothing(
    commands, tmp_path, change
):
    done = commands.train(tmp_path / "run", *change.split())
    assert BAD[change] in refused(done)
    assert not (tmp_path / "run").exists()


def test_train_names_the_configs_where_it_gets_no_config(commands):
    plans = f"{ROOT}/configs/plans.py"
    line = refused(commands.run("train.py", f"--config={plans}"))
    assert f"{plans} is no config file: it defines no get_config; configs are" in line
    assert f"{ROOT}/configs/listops.py" in line
    assert "/defaults.py" not in line
    line = refused(commands.run("train.py"))
    assert line.startswith("error: give --config=FILE.py:ATTENTION,PRESET, as in --")


@pytest.mark.parametrize("body", ["return nothing", "ConfigDict().trian.seed = 1"])
def test_train_shows_where_a_config_file_fails(commands, tmp_path, body):
    path = tmp_path / "mine.py"
    head = "from ml_collections import ConfigDict\ndef get_config():\n"
    path.write_text(f"{head}    {body}")
    done = commands.run("train.py", f"--config={path}", f"--workdir={tmp_path}/run")
    assert done.returncode == 1
    assert 'mine.py", line 3' in done.stderr
