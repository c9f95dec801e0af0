"""The main job as a person runs it: to the end, killed, stopped, and misused."""

import json
import random
import re
import signal
import subprocess
import time

import jax
import pytest


def result_of(workdir) -> dict:
    return json.loads((workdir / "result.json").read_text())


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
    assert result["steps"] == 400
    assert len(result["data_sha256"]["test"]) == 64
    assert result["versions"]["jax"] == jax.__version__
    assert re.fullmatch(r"[0-9a-f]{40}\+?", result["commit"] or "0" * 40)  # or no git


def test_a_finished_run_says_so_and_does_nothing(commands, finished):
    workdir, _ = finished

    def times():
        files = [path for path in workdir.rglob("*") if path.name != "lock"]
        return {path: path.stat().st_mtime_ns for path in files}

    before = times()
    again = commands.train(workdir)
    assert again.returncode == 0
    assert "is finished" in again.stdout
    assert times() == before


def test_a_run_killed_at_three_random_moments_ends_with_the_same_bits(
    commands, finished
):
    rng = random.Random(0)
    workdir = commands.folder / "killed"
    metrics = workdir / "metrics.jsonl"

    def changed_at() -> int:
        return metrics.stat().st_mtime_ns if metrics.exists() else 0

    def num_checkpoints() -> int:
        return len([x for x in workdir.glob("checkpoints/*") if x.name.isdigit()])

    for kill in range(3):
        before = changed_at()
        process = commands.start("train.py", *commands.train_args(workdir))
        while changed_at() == before or (kill == 1 and not num_checkpoints()):
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 2))
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert num_checkpoints() > 0
    assert not (workdir / "result.json").exists()
    resumed = commands.train(workdir)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from step" in resumed.stdout
    whole, ours = result_of(finished[0]), result_of(workdir)
    for key in ("params_sha256", "test_loss", "best_step", "validation_accuracy"):
        assert ours[key] == whole[key]


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


def damage(step_folder) -> None:
    files = [path for path in step_folder.rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_and_when_all_are_it_refuses(
    commands, finished, tmp_path
):
    workdir = tmp_path / "run"
    checkpoints = workdir / "checkpoints"
    process = commands.start("train.py", *commands.train_args(workdir))
    while len([x for x in checkpoints.glob("*") if x.name.isdigit()]) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.communicate()
    older, newer = sorted(
        (x for x in checkpoints.iterdir() if x.name.isdigit()),
        key=lambda x: int(x.name),
    )
    damage(newer)
    resumed = commands.train(workdir)
    assert f"checkpoint {newer.name}" in resumed.stdout
    assert f"going on from step {older.name}" in resumed.stdout
    whole = result_of(finished[0])
    assert result_of(workdir)["params_sha256"] == whole["params_sha256"]

    (workdir / "result.json").unlink()
    damage(checkpoints / "400")
    refused = commands.train(workdir)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: no whole checkpoint in")
    assert refused.stderr.count("\n") == 1
    assert (checkpoints / "400").is_dir()


@pytest.mark.parametrize(
    ("signum", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGALRM, 142, marks=pytest.mark.slow),
        pytest.param(signal.SIGUSR2, 140, marks=pytest.mark.slow),
    ],
)
def test_a_signal_saves_and_leaves_with_a_line(commands, finished, signum, status):
    workdir = commands.folder / signum.name
    process = commands.start("train.py", *commands.train_args(workdir))
    metrics = workdir / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    if signum == signal.SIGTERM:
        process.send_signal(signal.SIGSTOP)  # so that it does not end meanwhile
        second = commands.train(workdir)
        process.send_signal(signal.SIGCONT)
        assert second.returncode == 2
        assert f"another process is training in {workdir}" in second.stderr
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    assert f"stopped by {why} at step" in out
    assert "saved" in out
    assert "Traceback" not in err
    resumed = commands.train(workdir, "--max_minutes=9")
    assert "going on from step" in resumed.stdout
    assert (
        result_of(workdir)["params_sha256"] == result_of(finished[0])["params_sha256"]
    )


def test_after_max_minutes_a_run_that_has_not_begun_ends_too(commands):
    workdir = commands.folder / "late"
    done = commands.train(workdir, "--max_minutes=0.001")
    assert (done.returncode, done.stderr) == (142, "stopped by its time limit\n")
    assert not (workdir / "result.json").exists()


BAD = {
    "--config.task.name=listopps": "unknown task 'listopps'",
    "--config.task.max_depth=1": "max_depth must be at least 2",
    "--config.attention.name=flash": "unknown attention 'flash'; known:",
    "--config.train.no_such=1": "no key no_such",
    "--config.train.num_steps=many": "invalid literal for int",
    "--config.attention.num_landmarks=0": "num_landmarks must be at least 1, got 0",
    "--config.attention.conv_kernel_size=4": "conv_kernel_size must be odd",
    "--config.model.num_heads=3": "model_dim=8 is not num_heads=3",
    "--config.model.remat=all": "remat must be one of",
    "--config.train.batch_size=301": "over the 300 training examples",
    "--config.train.seed=1": "another config: train.seed is 0 there, 1 here",
    "--config.task.source_dir=/no/such": "basic_train.tsv is missing",
    "--workdir=/dev/null/run": "/dev/null/run: Not a directory",
    "--workdir=s3://bucket/run": "s3://bucket/run is neither a folder nor gs://BUCKET",
    "--max_minutes=nan": "--max_minutes=nan: must be between 0.001 and",
    "--no_such_flag=1": "Unknown command line flag 'no_such_flag'",
    "stray": "unexpected argument 'stray'",
}


def test_bad_input_is_one_line_and_status_2(commands, finished):
    workdir, _ = finished
    before = (workdir / "result.json").read_text()
    for batch in (list(BAD)[:8], list(BAD)[8:]):
        started = {}
        for change in batch:
            other = commands.folder / f"bad-{list(BAD).index(change)}"
            where = workdir if "seed" in change else other
            args = commands.train_args(where, change)
            started[change] = commands.start("train.py", *args)
        for change, process in started.items():
            _, err = process.communicate(timeout=120)
            assert process.returncode == 2, (change, err)
            assert BAD[change] in err
            assert err.startswith("error: ")
            assert err.count("\n") == 1, err
    assert (workdir / "result.json").read_text() == before


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("listops.py:flash", "unknown attention or preset 'flash'; known: "),
        ("no_such.py", "configs/no_such.py"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(commands, arg, message):
    config = commands.train_args(commands.folder)[0].split("listops.py")[0] + arg
    done = commands.run("train.py", config, f"--workdir={commands.folder}/none")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_config_may_leave_the_length_to_its_task(commands, tmp_path):
    (tmp_path / "short.py").write_text(
        "from configs import listops\n"
        "def get_config():\n"
        "    config = listops.get_config('nystrom,quick')\n"
        "    del config.task.max_length\n"
        "    return config\n"
    )
    args = (f"--config={tmp_path}/short.py", f"--workdir={tmp_path}/run")
    done = commands.run("train.py", *args, "--seq_shards=2001")
    assert done.returncode == 2
    assert done.stderr.startswith("error: 1 devices cannot be split"), done.stderr


def test_a_workdir_that_is_refused_stays_as_it_was(commands, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    done = commands.train(tmp_path)
    assert done.returncode == 2
    assert "holds checkpoints but no config.json" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_full_disk_is_one_line_and_keeps_what_was_saved(commands, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
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
