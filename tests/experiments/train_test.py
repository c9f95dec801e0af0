"""The main job as a person runs it: to the end, killed, stopped, and misused."""

import re
import signal
import subprocess
import sys
import time

import jax
import pytest

from nystromformer.training.checkpoint import saved_steps
from tests.commands import ROOT, refused
from tests.small import SMALL, losses, numbers, result_of


def start(commands, workdir):
    """A run that has just written more metrics than there were."""
    metrics = workdir / "metrics.jsonl"

    def size() -> int:
        return metrics.stat().st_size if metrics.exists() else 0

    before = size()
    process = commands.start("train.py", *commands.train_args(workdir))
    while size() <= before:
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    return process


def stop(process, signum) -> str:
    """What it prints on a signal, which it heeds."""
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    expected = -signum if signum == signal.SIGKILL else 128 + signum
    assert process.returncode == expected, (out, err)
    return out


def checkpoints(workdir):
    """Newest first."""
    return [workdir / "checkpoints" / str(step) for step in saved_steps(workdir)]


def test_a_run_prints_its_test_accuracy_beside_its_floors(finished):
    workdir, printed = finished
    result = result_of(workdir)
    assert f"{result['num_params']:,} parameters" in printed
    assert f"test accuracy {result['test_accuracy']:.2%} (50 examples)" in printed
    assert {"majority class", "root operator"} <= {*result["floors"]}
    for name, accuracy in result["floors"].items():
        assert re.search(rf"floor: +{accuracy:.2%}  {name}", printed)
    assert len(result["data_sha256"]["test"]) == 64
    assert result["versions"]["jax"] == jax.__version__


def test_a_finished_run_says_so_and_does_nothing(commands, finished):
    def times():
        return {path: path.stat().st_mtime_ns for path in finished[0].rglob("*")}

    before = times()
    again = commands.train(finished[0])
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert times() == before


def test_a_killed_run_goes_on_to_the_same_bits(commands, finished, tmp_path):
    process = start(commands, tmp_path)
    while not checkpoints(tmp_path):
        time.sleep(0.005)
    stop(process, signal.SIGKILL)
    resumed = commands.train(tmp_path)
    assert "resuming from step" in resumed.stdout, resumed.stderr
    assert numbers(tmp_path) == numbers(finished[0])


def test_a_signal_saves_and_another_process_does_not_train_there(
    commands, finished, tmp_path
):
    process = start(commands, tmp_path)
    process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
    second = commands.train(tmp_path)
    process.send_signal(signal.SIGCONT)
    assert f"another process is training in {tmp_path}" in refused(second)
    out = stop(process, signal.SIGTERM)
    step = re.search(r"stopped by SIGTERM at step (\d+); saved", out)[1]
    assert checkpoints(tmp_path)[0].stem == step
    changed = commands.train(tmp_path, "--config.train.seed=1")
    assert "another config: train.seed is 0 there, 1 here" in refused(changed)
    resumed = commands.with_env(PATH="/no/git").train(tmp_path)
    assert f"resuming from step {step}\n" in resumed.stdout
    assert numbers(tmp_path) == numbers(finished[0])
    first, *others = result_of(tmp_path)["sessions"]
    if first["commit"]:  # the tests may run outside git
        said = f"since the last session: commit None instead of {first['commit']}\n"
        assert said in resumed.stdout
        assert [(x["step"], x["commit"]) for x in others] == [(int(step), None)]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGALRM, signal.SIGUSR2])
def test_every_signal_that_asks_to_stop_saves(commands, tmp_path, signum):
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    assert f"stopped by {why} at step" in stop(start(commands, tmp_path), signum)
    assert checkpoints(tmp_path)


def damage(file) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_and_when_all_are_it_refuses(
    commands, finished, tmp_path
):
    for _ in range(2):  # sessions, each of which saves as it is stopped
        stop(start(commands, tmp_path), signal.SIGTERM)
    newer, older = checkpoints(tmp_path)
    whole = older.read_bytes()
    for file in (newer, older):
        damage(file)
    said = refused(commands.train(tmp_path))
    assert said.startswith("error: no intact checkpoint in")
    assert checkpoints(tmp_path) == [newer, older]
    older.write_bytes(whole)
    resumed = commands.train(tmp_path)
    assert f"checkpoint {newer.stem} in" in resumed.stdout
    assert f"resuming from step {older.stem}\n" in resumed.stdout
    assert numbers(tmp_path) == numbers(finished[0])


@pytest.mark.slow
@pytest.mark.parametrize("sequence_parallelism", [1, 2])
def test_the_devices_of_a_machine_share_the_work(
    commands, finished, tmp_path, sequence_parallelism
):
    four = commands.with_env(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4")
    done = four.train(tmp_path, f"--sequence_parallelism={sequence_parallelism}")
    assert done.returncode == 0, done.stderr
    mesh = {"data": 4 // sequence_parallelism, "seq": sequence_parallelism}
    assert result_of(tmp_path)["mesh"] == mesh
    assert losses(tmp_path)[:5] == pytest.approx(losses(finished[0])[:5], abs=1e-6)


def test_a_closed_pipe_saves_and_leaves(commands, tmp_path):
    """A cold process, as `python scripts/train.py … | head -2` starts it."""
    args = commands.train_args(tmp_path, "--config.train.num_steps=40000")
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *args]
    with subprocess.Popen(
        command, env=commands.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not process.stdout.readline().startswith(b"step 40: validation"):
            assert process.poll() is None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGHUP
    assert checkpoints(tmp_path)


def test_after_max_minutes_a_run_that_has_not_begun_ends_too(commands, tmp_path):
    done = commands.train(tmp_path / "run", "--max_minutes=0.001")
    assert (done.returncode, done.stderr) == (142, "stopped by its time limit\n")


BAD = {
    "--config.task.name=listopps": "unknown task 'listopps'",
    "--config.train.num_step=1": "no key train.num_step; did you mean train.num_steps ",
    "--config.trains.seed=1": "no key trains.seed; did you mean train.seed",
    "--config.train.num_steps=many": "invalid literal for int",
    "--config.attention.conv_kernel_size=4": "conv_kernel_size must be odd",
    "--config.model.mlp_dim=100000000000": "parameters take 57,600 GB to train, and",
    "--config.train.batch_size=301": "over the 300 training examples",
    "--workdir=": "--workdir=: is empty: name a folder",
    "--workdir=s3://bucket/run": "s3://bucket/run is neither a folder nor gs://BUCKET",
    "--max_minutes=nan": "--max_minutes=nan: must be between 0.001 and",
    "--sequence_parallelism=3": "sequence_parallelism=3",
    "--num_processes=2": "--num_processes, --process_id together, and with --dist",
    "--distributed --num_processes=2": "--process_id together",
    "stray": "unexpected argument 'stray'",
}


def test_bad_input_is_one_line_and_leaves_nothing(commands, tmp_path):
    for change, said in BAD.items():
        done = commands.train(tmp_path / "run", *change.split())
        assert said in refused(done), change
    assert not (tmp_path / "run").exists()


CONFIGS = {
    "def get_config():\n    return nothing": "line 2: NameError: name 'nothing' is not",
    "def get_config(:": "line 1: SyntaxError: invalid syntax",
    "x = 1": "mine.py has no function get_config",
    "def get_config():\n    return {}": "get_config must return an ml_collections",
    None: "there is no config file",
}


def test_a_config_that_cannot_be_read_is_one_line(commands, tmp_path):
    path = tmp_path / "mine.py"
    for content, said in CONFIGS.items():
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
        args = (f"--config={path}", f"--workdir={tmp_path}/run")
        assert said in refused(commands.run("train.py", *args))


def test_a_platform_that_is_not_there_is_one_line(commands, tmp_path):
    done = commands.with_env(JAX_PLATFORMS="cuda").train(tmp_path / "run")
    assert done.returncode == 2
    assert "error: JAX finds no device where JAX_PLATFORMS=cuda: " in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_every_flag_and_every_key_with_its_value(commands):
    config = commands.train_args(commands.folder)[0]
    done = commands.run("train.py", config, "--help", "--config.train.seed=7")
    assert done.returncode == 0, done.stderr
    for flag in ("workdir", "max_minutes", "[no]distributed", "sequence_parallelism"):
        assert f"\n  --{flag}: " in done.stdout
    assert "\n  --config.train.seed=7\n" in done.stdout
    keys = {flag.partition("=")[0] for flag in SMALL}
    assert keys <= set(re.findall(r"^  (--config\.[\w.]+)", done.stdout, re.MULTILINE))
