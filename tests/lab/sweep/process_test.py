"""One process: its log, its end, and the reason when it fails."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from nystromformer.lab.sweep.process import Process, failure


def start(workdir, program: str) -> Process:
    return Process([sys.executable, "-c", program], workdir, os.environ)


def end(process: Process) -> int:
    process.wait()
    status = process.poll()
    assert status is not None
    return status


def test_what_it_says_goes_to_a_log_that_grows(tmp_path):
    for word in ("one", "two"):
        assert end(start(tmp_path, f"print('{word}')")) == 0
    assert (tmp_path / "log.txt").read_text() == "one\ntwo\n"
    assert failure(tmp_path) is None


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('before'); raise SystemExit('error: no data ')", "error: no data"),
        ("[][1]", "IndexError: list index out of range"),
        ("raise SystemExit(3)", "exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL; out of memory?"),
    ],
)
def test_a_failure_keeps_its_last_line_until_it_is_tried_again(
    tmp_path, program, reason
):
    (tmp_path / "log.txt").write_text("error: of an earlier try\n")
    assert end(start(tmp_path, program)) != 0
    assert failure(tmp_path) == reason
    assert end(start(tmp_path, "pass")) == 0
    assert failure(tmp_path) is None


@pytest.mark.parametrize("status", [130, 142, 143])
def test_a_run_that_was_stopped_has_not_failed(tmp_path, status):
    assert end(start(tmp_path, f"raise SystemExit({status})")) == status
    assert failure(tmp_path) is None


def test_a_run_that_was_stopped_amid_its_imports_has_not_failed(tmp_path):
    process = start(tmp_path, "import time; time.sleep(60)")
    process.stop()
    assert end(process) == -signal.SIGTERM
    assert failure(tmp_path) is None


def test_stop_is_a_sigterm_and_ctrl_c_does_not_reach_it(tmp_path):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    process = start(tmp_path, program)
    while not (tmp_path / "log.txt").read_text():
        time.sleep(0.02)
    assert os.getpgid(process.popen.pid) != os.getpgid(0)
    assert process.poll() is None
    process.stop()
    assert end(process) == 143
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


def test_a_reason_that_cannot_be_read_is_still_a_failure(tmp_path):
    (tmp_path / "failed.json").write_text(json.dumps(["?"]))
    assert failure(tmp_path) == "failed.json cannot be read"


def test_what_may_not_be_read_or_is_done_is_no_failure(tmp_path, monkeypatch):
    (tmp_path / "failed.json").write_text('{"error": "no data"}')
    assert failure(tmp_path) == "no data"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda _: os.open("/", os.O_WRONLY))
        assert failure(tmp_path) is None
    (tmp_path / "result.json").touch()
    assert failure(tmp_path) is None
