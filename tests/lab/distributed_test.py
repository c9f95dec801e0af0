"""One run in several real processes over gloo: the same run, whoever is killed."""

import json
import os
import signal
import socket
import time

import jax
import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.distributed import together

SHORT = (
    "--config.train.num_steps=50",
    "--config.train.log_every=1",
    "--config.train.eval_every=25",
)


def start(commands, count, workdir, *changes):
    """All processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = ("--distributed", f"--coordinator=127.0.0.1:{port}")
    args = commands.train_args(workdir, *changes)
    return [
        commands.start(
            "train.py",
            *args,
            *together,
            f"--num_processes={count}",
            f"--process_id={process_id}",
        )
        for process_id in range(count)
    ]


def finish(processes):
    """Status and stderr of each, within a minute of the first that ends."""
    ended = [process.communicate(timeout=300) for process in processes]
    return [(p.returncode, err) for p, (_, err) in zip(processes, ended, strict=True)]


def losses(workdir):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.fixture(scope="module")
def alone(commands):
    workdir = commands.folder / "alone"
    assert commands.train(workdir, *SHORT).returncode == 0
    return workdir


def test_two_processes_train_as_one(commands, finished):
    workdir = commands.folder / "by-2"
    for status, stderr in finish(start(commands, 2, workdir)):
        assert status == 0, stderr
    assert losses(workdir)[:5] == pytest.approx(losses(finished[0])[:5], abs=1e-6)
    result = json.loads((workdir / "result.json").read_text())
    assert (result["processes"], result["mesh"]) == (2, {"data": 2, "seq": 1})


@pytest.mark.slow
def test_the_losses_of_four_are_those_of_one_process(commands, alone):
    workdir = commands.folder / "by-4"
    for status, stderr in finish(start(commands, 4, workdir, *SHORT)):
        assert status == 0, stderr
    assert losses(workdir) == pytest.approx(losses(alone), abs=1e-6)
    results = [json.loads((w / "result.json").read_text()) for w in (alone, workdir)]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]


@pytest.mark.slow
def test_the_parts_of_a_batch_are_those_of_one_process(commands):
    """Evaluation has batches of several lengths then, which all have to agree on."""
    parts = ("--config.train.micro_batches=2", "--config.train.length_buckets=4")
    workdirs = [commands.folder / "parts-alone", commands.folder / "parts-by-2"]
    assert commands.train(workdirs[0], *SHORT, *parts).returncode == 0
    for status, stderr in finish(start(commands, 2, workdirs[1], *SHORT, *parts)):
        assert status == 0, stderr
    one, two = map(losses, workdirs)
    assert two == pytest.approx(one, abs=1e-6)
    results = [json.loads((w / "result.json").read_text()) for w in workdirs]
    assert results[0]["test_accuracy"] == results[1]["test_accuracy"]


def wait_for_checkpoint(workdir, processes):
    while not list(workdir.glob("checkpoints/[0-9]*")):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_what_four_saved_fewer_go_on_from(commands, alone, count):
    workdir = commands.folder / f"from-4-by-{count}"
    processes = start(commands, 4, workdir, *SHORT)
    wait_for_checkpoint(workdir, processes)
    processes[2].terminate()  # one hears it, all stop
    for status, stderr in finish(processes):
        assert status == 128 + signal.SIGTERM, stderr
    assert not (workdir / "result.json").exists()
    if count == 1:
        assert commands.train(workdir, *SHORT).returncode == 0
    else:
        for status, stderr in finish(start(commands, count, workdir, *SHORT)):
            assert status == 0, stderr
    assert losses(workdir) == pytest.approx(losses(alone), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_is_killed_the_others_say_so_and_all_can_go_on(
    commands, alone, victim
):
    workdir = commands.folder / f"killed-{victim}"
    processes = start(commands, 2, workdir, *SHORT)
    wait_for_checkpoint(workdir, processes)
    processes[victim].kill()
    killed_at = time.monotonic()
    (_, _), (status, stderr) = sorted(finish(processes))
    assert time.monotonic() - killed_at < 60
    ours = "start all of them again"
    # Where the first process is the one, JAX's runtime may be faster than gloo.
    assert (status == 1 and ours in stderr) or (
        victim == 0 and status == -signal.SIGABRT and "Terminating process" in stderr
    ), (status, stderr)
    assert "Traceback" not in stderr
    for status, stderr in finish(start(commands, 2, workdir, *SHORT)):
        assert status == 0, stderr
    assert losses(workdir) == pytest.approx(losses(alone), abs=1e-6)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (FileNotFoundError(2, "No such file", "/no"), 2, "error: /no: No such file\n"),
        (ConfigError("two\nlines"), 2, "error: two lines\n"),
        (RuntimeError("gloo\nat 0x7f"), 1, "error: gloo; if another process of this"),
    ],
)
def test_an_error_ends_all_with_one_line(monkeypatch, capsys, error, status, said):
    exits = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(os, "_exit", exits.append)
    with together():
        raise error
    printed = capsys.readouterr().err
    assert exits == [status]
    assert printed.startswith(said)
    assert printed.count("\n") == 1


def test_what_does_not_fit_is_said_in_one_line(commands, tmp_path):
    refused = commands.train(tmp_path / "run", "--distributed", "--num_processes=2")
    assert refused.returncode == 2
    assert not (tmp_path / "run").exists()
    assert refused.stderr.startswith("error: --coordinator is missing: give all of")
    assert len(refused.stderr.strip().splitlines()) == 1


ONE_OF_TWO = """
import sys
import jax
from absl import flags
from nystromformer.lab import cli
from scripts import train

def refuse(flag):
    raise OSError("no such bucket")

cli.folder = refuse
jax.process_count = lambda: 2
flags.FLAGS(sys.argv)
train.main()
"""


def test_a_bucket_that_one_process_cannot_open_ends_all_of_them(commands, tmp_path):
    (tmp_path / "one.py").write_text(ONE_OF_TWO)
    args = commands.train_args(tmp_path / "run")
    ended = commands.run(str(tmp_path / "one.py"), *args)
    assert (ended.returncode, ended.stderr) == (2, "error: no such bucket\n")
