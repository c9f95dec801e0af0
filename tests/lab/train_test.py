"""The main job as a person runs it: to the end, killed, stopped, and misused."""

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from nystromformer.training.checkpoint import steps_in
from tests.commands import ROOT
from tests.small import SMALL, result_of

SAME = ("params_sha256", "test_loss", "best_step", "validation_accuracy")


def assert_same(workdir, finished) -> None:
    """The same bits as those of the run that nothing interrupted."""
    ours, whole = result_of(workdir), result_of(finished[0])
    assert {key: ours[key] for key in SAME} == {key: whole[key] for key in SAME}


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


def checkpoints(workdir) -> list[Path]:
    """Newest first."""
    folder = workdir / "checkpoints"
    return [folder / f"{step}.safetensors" for step in steps_in(folder)]


def test_a_run_prints_its_test_accuracy_beside_its_floors(finished):
    workdir, printed = finished
    result = result_of(workdir)
    assert f"{result['num_params']:,} parameters" in printed
    assert f"test accuracy {result['test_accuracy']:.2%}" in printed
    assert result["test_examples"] == 50
    for name, accuracy in result["floors"].items():
        assert name in printed
        assert f"{accuracy:.2%}" in printed
    assert set(result["floors"]) >= {"majority class", "root operator"}
    assert len(result["data_sha256"]["test"]) == 64
    assert result["versions"]["jax"] == jax.__version__
    assert re.fullmatch(r"[0-9a-f]{40}\+?", result["commit"] or "0" * 40)  # or no git


def test_a_finished_run_says_so_and_does_nothing(commands, finished):
    workdir, _ = finished

    def times():
        return {path: path.stat().st_mtime_ns for path in workdir.rglob("*")}

    before = times()
    again = commands.train(workdir)
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert times() == before


def test_a_run_killed_at_random_moments_ends_with_the_same_bits(commands, finished):
    rng = random.Random(0)
    workdir = commands.folder / "killed"
    for kill in range(3):
        process = start(commands, workdir)
        while kill == 1 and not checkpoints(workdir):
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        stop(process, signal.SIGKILL)
    assert not (workdir / "result.json").exists()
    resumed = commands.train(workdir)
    assert "going on from step" in resumed.stdout, resumed.stderr
    assert_same(workdir, finished)


def test_a_signal_saves_and_another_process_does_not_train_there(commands, finished):
    workdir = commands.folder / "stopped"
    process = start(commands, workdir)
    process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
    second = commands.train(workdir)
    process.send_signal(signal.SIGCONT)
    assert second.returncode == 2
    assert f"another process is training in {workdir}" in second.stderr
    out = stop(process, signal.SIGTERM)
    step = re.search(r"stopped by SIGTERM at step (\d+); saved", out)[1]
    assert checkpoints(workdir)[0].stem == step
    changed = commands.train(workdir, "--config.train.seed=1")
    assert changed.returncode == 2
    assert "another config: train.seed is 0 there, 1 here" in changed.stderr
    resumed = commands.with_env(PATH="/no/git").train(workdir)
    assert f"going on from step {step}\n" in resumed.stdout
    assert_same(workdir, finished)
    first, *others = result_of(workdir)["sessions"]
    if first["commit"]:  # the tests may run outside git
        said = f"since the last session: commit None instead of {first['commit']}\n"
        assert said in resumed.stdout
        assert [(x["step"], x["commit"]) for x in others] == [(int(step), None)]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGALRM, signal.SIGUSR2])
def test_every_signal_that_asks_to_stop_saves(commands, finished, signum):
    workdir = commands.folder / signum.name
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    assert f"stopped by {why} at step" in stop(start(commands, workdir), signum)
    commands.train(workdir)
    assert_same(workdir, finished)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_and_when_all_are_it_refuses(
    commands, finished, tmp_path
):
    for _ in range(2):  # sessions, each of which saves as it is stopped
        stop(start(commands, tmp_path), signal.SIGTERM)
    newer, older = checkpoints(tmp_path)
    shutil.copytree(tmp_path, tmp_path / "other")
    damage(newer)
    resumed = commands.train(tmp_path)
    assert f"checkpoint {newer.stem} in" in resumed.stdout
    assert f"going on from step {older.stem}\n" in resumed.stdout
    assert_same(tmp_path, finished)

    files = checkpoints(tmp_path / "other")
    for file in files:
        damage(file)
    refused = commands.train(tmp_path / "other")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: no whole checkpoint in")
    assert refused.stderr.count("\n") == 1
    assert checkpoints(tmp_path / "other") == files


@pytest.mark.slow
@pytest.mark.parametrize("seq_shards", [1, 2])
def test_the_devices_of_a_machine_share_the_work(commands, finished, seq_shards):
    workdir = commands.folder / f"devices-{seq_shards}"
    four = commands.with_env(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4")
    done = four.train(workdir, f"--seq_shards={seq_shards}")
    assert done.returncode == 0, done.stderr
    ours = result_of(workdir)
    assert ours["mesh"] == {"data": 4 // seq_shards, "seq": seq_shards}

    def losses(folder):
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [row["loss"] for row in rows if row["split"] == "train"][:5]

    assert losses(workdir) == pytest.approx(losses(finished[0]), abs=1e-6)


def test_a_closed_pipe_saves_and_leaves(commands, tmp_path):
    """A cold process, as `python scripts/train.py … | head -2` starts it."""
    args = commands.train_args(tmp_path / "run", "--config.train.num_steps=40000")
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), *args]
    with subprocess.Popen(
        command, env=commands.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        while not process.stdout.readline().startswith(b"step 40: validation"):
            assert process.poll() is None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGHUP
    assert checkpoints(tmp_path / "run")


def test_after_max_minutes_a_run_that_has_not_begun_ends_too(commands):
    workdir = commands.folder / "late"
    done = commands.train(workdir, "--max_minutes=0.001")
    assert (done.returncode, done.stderr) == (142, "stopped by its time limit\n")
    assert not (workdir / "result.json").exists()


BAD = {
    "--config.task.name=listopps": "unknown task 'listopps'",
    "--config.attention.name=flash": "unknown attention 'flash'; known:",
    "--config.train.num_step=1": "no key train.num_step; did you mean train.num_steps?",
    "--config.train.num_steps=many": "invalid literal for int",
    "--config.attention.conv_kernel_size=4": "conv_kernel_size must be odd",
    "--config.model.mlp_dim=100000000000": "parameters take 57,600 GB to train, and",
    "--config.train.batch_size=301": "over the 300 training examples",
    "--config.task.source_dir=/no/such": "basic_train.tsv is missing",
    "--workdir=": "--workdir=: is empty: name a folder",
    "--workdir=/dev/null/run": "/dev/null/run: Not a directory",
    "--workdir=s3://bucket/run": "s3://bucket/run is neither a folder nor gs://BUCKET",
    "--max_minutes=nan": "--max_minutes=nan: must be between 0.001 and",
    "--seq_shards=3": "seq_shards=3",
    "--num_processes=2": "--num_processes, --process_id go with --distributed",
    "stray": "unexpected argument 'stray'",
}


def test_bad_input_is_one_line_and_leaves_nothing(commands, tmp_path):
    changes = list(BAD)
    for batch in (changes[:5], changes[5:10], changes[10:]):
        started = {
            change: commands.start(
                "train.py", *commands.train_args(tmp_path / "run", change)
            )
            for change in batch
        }
        for change, process in started.items():
            _, err = process.communicate(timeout=120)
            assert process.returncode == 2, (change, err)
            assert BAD[change] in err
            assert err.startswith("error: ")
            assert err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


CONFIGS = {
    "def get_config():\n    return nothing": "line 2: NameError: name 'nothing' is not",
    "import no_such_module": "line 1: ModuleNotFoundError: No module named 'no_such",
    "def get_config(:": "line 1: SyntaxError: invalid syntax",
    "x = 1": "mine.py has no function get_config",
    None: "there is no config file",
}


@pytest.mark.parametrize("content", CONFIGS)
def test_a_config_that_cannot_be_read_is_one_line(commands, tmp_path, content):
    path = tmp_path / "mine.py"
    if content:
        path.write_text(content)
    done = commands.run("train.py", f"--config={path}", f"--workdir={tmp_path}/run")
    assert done.returncode == 2
    assert CONFIGS[content] in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_platform_that_is_not_there_is_one_line(commands, tmp_path):
    done = commands.with_env(JAX_PLATFORMS="cuda").train(tmp_path / "run")
    assert done.returncode == 2
    assert "error: JAX finds no device where JAX_PLATFORMS=cuda: " in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_every_flag_and_every_key_with_its_value(commands):
    config = commands.train_args(commands.folder)[0]
    done = commands.run("train.py", config, "--help", "--config.train.seed=7")
    assert done.returncode == 0, done.stderr
    for flag in ("workdir", "max_minutes", "[no]distributed", "seq_shards"):
        assert f"\n  --{flag}: " in done.stdout
    assert "\n  --config.train.seed=7\n" in done.stdout
    assert "\n  --config.attention.num_landmarks=16\n" in done.stdout
    keys = {flag.partition("=")[0] for flag in SMALL}
    assert keys <= set(re.findall(r"^  (--config\.[\w.]+)", done.stdout, re.MULTILINE))


def test_a_workdir_that_is_refused_stays_as_it_was(commands, tmp_path):
    (tmp_path / "checkpoints" / "20").mkdir(parents=True)
    done = commands.train(tmp_path)
    assert done.returncode == 2
    assert "holds checkpoints but no config.json" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_full_disk_is_one_line_and_keeps_what_was_saved(commands, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        done = commands.train(disk / "run")
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr
        assert not (disk / "run" / "result.json").exists()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
