"""One process: its log, its end, and the reason when it fails."""

import os
import signal
import sys
import time

import pytest

from nystromformer.experiments.sweep.process import Process, failure


def start(workdir, program: str) -> Process:
    return Process([sys.executable, "-c", program], workdir, os.environ)


def end(process: Process) -> int | None:
    process.wait()
    return process.poll()


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('before'); raise SystemExit('error: no data ')", "error: no data"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL; out of memory?"),
        ("raise SystemExit(142)", None),  # has saved: it can go on
    ],
)
def test_a_failure_keeps_its_last_line_until_it_is_tried_again(
    tmp_path, program, reason
):
    (tmp_path / "log.txt").write_text("error: of an earlier try\n")
    assert end(start(tmp_path, program)) != 0
    assert failure(tmp_path) == reason
    assert end(start(tmp_path, "print('one')")) == 0
    assert failure(tmp_path) is None
    assert (tmp_path / "log.txt").read_text().endswith("one\n")


def test_stop_is_a_sigterm_and_ctrl_c_does_not_reach_it(tmp_path):
    ask = "import signal, time; print(signal.pthread_sigmask(0, []), flush=True)"
    process = start(tmp_path, f"{ask}; time.sleep(60)")
    while not (tmp_path / "log.txt").read_text():
        time.sleep(0.02)
    assert os.getpgid(process.popen.pid) != os.getpgid(0)
    assert "SIGUSR2" in (tmp_path / "log.txt").read_text()  # SLURM's warning
    assert process.poll() is None
    process.stop()
    assert end(process) == -signal.SIGTERM
    assert failure(tmp_path) is None
    process.stop()  # has ended: nothing to do


def test_it_can_be_waited_for_from_a_signal_handler_amid_a_poll(tmp_path):
    process = start(tmp_path, "import time; time.sleep(0.5)")
    waited = []

    def handler(signum, frame):
        process.wait()
        waited.append(signum)

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with process.popen._waitpid_lock:  # as a poll holds it
            os.kill(os.getpid(), signal.SIGUSR2)
            assert waited == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert process.poll() == 0
    process.wait()  # polled already


def test_a_reason_that_cannot_be_read_is_a_failure_until_there_is_a_result(tmp_path):
    (tmp_path / "failed.json").write_text('["?"]')
    assert failure(tmp_path) == "failed.json cannot be read"
    (tmp_path / "result.json").touch()
    assert failure(tmp_path) is None
