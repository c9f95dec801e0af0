"""Signals as a flag: real ones, sent to this process."""

import os
import signal

import pytest

from nystromformer.training.interrupt import Interrupted, StopFlag


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_flag_and_the_second_has_its_old_effect(signum):
    def old(signum, frame):
        raise KeyboardInterrupt

    before = signal.signal(signum, old)
    try:
        with StopFlag() as stop:
            assert stop.signum is None
            os.kill(os.getpid(), signum)
            assert stop.signum == signum
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signum)
    finally:
        signal.signal(signum, before)


def test_the_old_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopFlag():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_message_names_signal_and_step():
    assert str(Interrupted(signal.SIGTERM, 12)) == "stopped by SIGTERM at step 12"
