"""Signals as a flag: real ones, sent to this process."""

import os
import signal
import threading

import pytest

from nystromformer.experiments.interrupt import SIGNALS, StopFlag


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


def test_stop_flag_leaves_the_handlers_alone_outside_the_main_thread():
    before = [signal.getsignal(x) for x in SIGNALS]
    signums = []

    def enter():
        with StopFlag() as stop:
            signums.append(stop.signum)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert signums == [None]
    assert [signal.getsignal(x) for x in SIGNALS] == before


def test_stop_flag_lets_the_second_ctrl_c_end_at_once():
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
