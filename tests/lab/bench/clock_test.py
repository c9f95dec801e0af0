"""Turns and samples, on a clock that is moved by hand."""

import pytest

from nystromformer.lab.bench.clock import LEAST_SECONDS, interleaved


class Clock:
    """Programs of known length, and the order in which they ran."""

    def __init__(self):
        self.time, self.log = 0.0, []

    def program(self, name, seconds):
        def run():
            self.time += seconds
            self.log.append(name)

        return run


def test_each_gets_its_own_seconds_as_often_as_asked():
    clock = Clock()
    runs = [clock.program("long", 3.0), clock.program("short", LEAST_SECONDS / 8)]
    long, short = interleaved(runs, 7, lambda: clock.time)
    assert long == pytest.approx([3.0] * 7)
    assert short == pytest.approx([LEAST_SECONDS / 8] * 7)
    assert clock.log.count("short") > 7 * 8  # several calls in a sample


def test_all_take_turns_and_each_begins_a_round():
    clock = Clock()
    interleaved([clock.program(x, 1.0) for x in "abc"], 3, lambda: clock.time)
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab"
