"""Programs take turns; rows are of one step; memory that runs out is a row."""

import time

import jax
import pytest

from nystromformer.experiments.benchmark import timing
from nystromformer.experiments.benchmark.timing import (
    MIN_SECONDS,
    Program,
    measure,
    sample_in_turns,
)


def program(name, error=None):
    """A program that does nothing, or raises an error."""

    def run():
        if error:
            raise error

    return Program({"attention": name}, run)


class Clock:
    """A clock that goes on while its functions run, and a log of their calls."""

    def __init__(self):
        self.seconds = 0.0
        self.log = []

    def now(self):
        return self.seconds

    def function(self, name, seconds):
        def run(num_calls):
            self.seconds += num_calls * seconds
            self.log.extend([name] * num_calls)

        return run


def test_sample_in_turns_begins_every_round_with_another():
    clock = Clock()
    runs = [clock.function(name, 1.0) for name in "abc"]
    assert sample_in_turns(runs, 3, clock.now) == [[1.0] * 3] * 3
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab"


def test_sample_in_turns_repeats_short_programs():
    clock = Clock()
    short_seconds = MIN_SECONDS / 8
    runs = [clock.function("long", 3.0), clock.function("short", short_seconds)]
    long, short = sample_in_turns(runs, 7, clock.now)
    assert long == pytest.approx([3.0] * 7)
    assert short == pytest.approx([short_seconds] * 7)
    assert clock.log.count("short") > 7 * 8


def test_measure_gives_seconds_of_one_step():
    def run():
        time.sleep(0.01)

    one = Program({"attention": "one"}, run, peak_bytes=5)
    many = Program({"attention": "many"}, run, steps=1000)
    row_of_one, row_of_many = measure([one, many], rounds=3)
    assert len(row_of_one["seconds"]) == 3
    assert min(row_of_one["seconds"]) >= 0.01 > max(row_of_many["seconds"]) > 0
    assert row_of_one["key"] == {"attention": "one"}
    assert row_of_one["peak_bytes"] == 5


@pytest.mark.parametrize("words", ["RESOURCE_EXHAUSTED: no more", "out of memory"])
def test_measure_goes_on_where_memory_runs_out(words):
    full = program("full", jax.errors.JaxRuntimeError(words))
    rows = measure([full, program("fits")], rounds=3)
    assert [len(row["seconds"]) for row in rows] == [0, 3]


def test_measure_raises_other_errors():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        measure([program("broken", RuntimeError("INTERNAL"))], rounds=3)


def test_measure_waits_once_for_the_calls_of_a_sample(monkeypatch):
    """A program that is started in no time, and that takes a part of a long sample."""
    monkeypatch.setattr(timing, "MIN_SECONDS", 10.0)
    log = []

    def wait(result):
        log.append(("wait", result))
        time.sleep(0.01)

    def run():
        log.append("run")
        return len(log)

    measure([Program({}, run, wait)], rounds=2)
    num_waits = sum(1 for entry in log if entry != "run")
    assert num_waits == 4  # to warm up, to count the calls, and in each round
    assert log.count("run") > 10 * num_waits
    # What is waited for is the result of the last call.
    for i, entry in enumerate(log):
        if entry != "run":
            assert log[i - 1] == "run"
            assert entry == ("wait", i)
