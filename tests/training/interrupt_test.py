"""Signals as a flag: real ones, sent to this process."""

import os
import signal

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


def test_only_the_second_ctrl_c_leaves_at_once():
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_old_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_message_names_signal_and_step():
    assert str(Interrupted(signal.SIGTERM, 12)) == "stopped by SIGTERM at step 12"
    assert str(Interrupted(signal.SIGINT)) == "stopped by SIGINT"
    assert str(Interrupted(signal.SIGALRM, 3)) == "stopped by its time limit at step 3"
