"""Signals as a flag: real ones, sent to this process."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from nystromformer.training.interrupt import SIGNALS, Interrupted, StopFlag


@pytest.mark.parametrize("signum", SIGNALS)
def test_stop_flag_is_the_first_signal_and_handlers_come_back(signum):
    before = [signal.getsignal(x) for x in SIGNALS]
    with StopFlag() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signum
    assert [signal.getsignal(x) for x in SIGNALS] == before


def test_stop_flag_lets_the_second_ctrl_c_end_at_once():
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_interrupted_names_signal_and_step():
    assert str(Interrupted(signal.SIGTERM, 12)) == "stopped by SIGTERM at step 12"
    assert str(Interrupted(signal.SIGALRM, 3)) == "stopped by its time limit at step 3"


PROGRAM = """
import ctypes, time
from nystromformer.training.interrupt import StopFlag, end_if_stuck
end_if_stuck(seconds=0.2)
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
def nap():
    time.sleep(0.01)
with StopFlag() as stop:
    print("ready", flush=True)
"""
IN_PYTHON = """
    while stop.signum is None:
        nap()
    for _ in range(50):
        nap()
"""


@pytest.mark.parametrize(
    ("waits", "status"), [("    libc.pthread_mutex_lock(mutex)", 143), (IN_PYTHON, 0)]
)
def test_end_if_stuck_ends_a_process_that_waits_in_c_alone(waits, status):
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM) + waits]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        for _ in range(5):
            process.send_signal(signal.SIGTERM)  # again, if it was not yet waiting
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=8)
                break
        process.kill()
    assert process.returncode == status
