"""One run in several real processes over gloo: the same run, whoever is killed."""

import signal
import socket
import time

import pytest

from tests.small import losses, result_of

pytestmark = pytest.mark.slow
SHORT = (
    *("--config.train.num_steps=50", "--config.train.log_every=1"),
    # Of several lengths, on which all processes have to agree.
    *("--config.train.grad_accum_steps=2", "--config.train.length_buckets=2"),
)


def start(commands, count, workdir):
    """All processes of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = (f"--coordinator=127.0.0.1:{port}", f"--num_processes={count}")
    args = (*commands.train_args(workdir, *SHORT), "--distributed", *flags)
    numbers = (f"--process_id={number}" for number in range(count))
    return [commands.start("train.py", *args, number) for number in numbers]


def finish(processes, *statuses):
    """Waits for all and asserts that each has ended in one of these ways."""
    for process in processes:
        _, stderr = process.communicate(timeout=200)
        assert process.returncode in statuses, stderr


def wait_for_checkpoint(workdir, processes):
    while not list(workdir.glob("checkpoints/[0-9]*")):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def alone(commands):
    workdir = commands.folder / "alone"
    finish([commands.start("train.py", *commands.train_args(workdir, *SHORT))], 0)
    return workdir


def assert_same(workdir, alone):
    assert losses(workdir) == pytest.approx(losses(alone), abs=1e-6)
    loss = result_of(workdir)["test_loss"]
    assert loss == pytest.approx(result_of(alone)["test_loss"], abs=1e-6)


def test_train_in_one_process_resumes_what_four_saved(commands, alone, tmp_path):
    processes = start(commands, 4, tmp_path)
    wait_for_checkpoint(tmp_path, processes)
    processes[2].send_signal(signal.SIGTERM)  # one hears it, all stop
    finish(processes, 128 + signal.SIGTERM)
    assert commands.train(tmp_path, *SHORT).returncode == 0
    assert_same(tmp_path, alone)


@pytest.mark.parametrize("victim", [0, 1])
def test_train_in_two_processes_ends_where_one_is_killed_and_resumes(
    commands, alone, tmp_path, victim
):
    processes = start(commands, 2, tmp_path)
    wait_for_checkpoint(tmp_path, processes)
    processes[victim].send_signal(signal.SIGKILL)
    finish([processes[1 - victim]], 1, -signal.SIGABRT)
    finish(start(commands, 2, tmp_path), 0)
    assert_same(tmp_path, alone)
    assert result_of(tmp_path)["processes"] == 2
    assert result_of(tmp_path)["mesh"] == {"data": 2, "seq": 1}
