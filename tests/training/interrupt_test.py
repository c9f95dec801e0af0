"""Signals as a flag: real ones, sent to this process."""

import os
import pty
import signal
import subprocess
import sys

import pytest

from nystromformer.training.interrupt import Interrupted, StopFlag


@pytest.mark.parametrize("signum", StopFlag.SIGNALS)
def test_a_signal_is_a_flag_and_stays_one_when_the_cluster_repeats_it(signum):
    with StopFlag() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signum


def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signum is None
    finally:
        signal.signal(signal.SIGHUP, before)


PROGRAM = """
import os, sys, time
from nystromformer.training.interrupt import StopFlag
if os.isatty(0):
    os.open(os.ttyname(0), os.O_RDWR)  # which takes it as the session's terminal
with StopFlag() as stop:
    print("ready", flush=True)
    while stop.signum is None:
        time.sleep(0.02)
print("saving", flush=True)
open(sys.argv[1], "w").write(str(stop.signum))
"""


@pytest.mark.parametrize("make", [pty.openpty, os.pipe])
def test_when_its_terminal_or_the_reader_of_its_pipe_is_gone_a_run_still_saves(
    tmp_path, make
):
    reader, end = make()
    on_terminal = make is pty.openpty
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "saved")],
        stdin=end if on_terminal else subprocess.DEVNULL,
        stdout=end,
        stderr=end,
        start_new_session=on_terminal,
    )
    os.close(end)
    assert b"ready" in os.read(reader, 100)
    os.close(reader)
    if not on_terminal:  # else the kernel sends it
        process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=30) == 0
    assert (tmp_path / "saved").read_text() == str(int(signal.SIGHUP))


def test_only_the_second_ctrl_c_leaves_at_once():
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_message_names_signal_and_step():
    assert str(Interrupted(signal.SIGTERM, 12)) == "stopped by SIGTERM at step 12"
    assert str(Interrupted(signal.SIGINT)) == "stopped by SIGINT"
    assert str(Interrupted(signal.SIGALRM, 3)) == "stopped by its time limit at step 3"
