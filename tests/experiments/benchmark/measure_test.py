"""Programs take turns; rows are of one step; memory that runs out is a row."""

import jax
import pytest

from nystromformer.experiments.benchmark.programs import (
    LEAST_SECONDS,
    Program,
    interleaved,
    measure,
)


def program(name, error=None, **sizes):
    def run():
        if error:
            raise error

    return Program({"attention": name}, run, **sizes)


def test_interleaved_takes_turns_and_repeats_short_programs():
    time, log = [0.0], []

    def lasting(name, seconds):
        def run():
            time[0] += seconds
            log.append(name)

        return run

    runs = [lasting(x, 1.0) for x in "abc"]
    assert interleaved(runs, 3, lambda: time[0]) == [[1.0] * 3] * 3
    assert "".join(log) == "abc" + "abc" + "bca" + "cab"  # each begins a round
    runs = [lasting("long", 3.0), lasting("short", LEAST_SECONDS / 8)]
    long, short = interleaved(runs, 7, lambda: time[0])
    assert long == pytest.approx([3.0] * 7)
    assert short == pytest.approx([LEAST_SECONDS / 8] * 7)
    assert log.count("short") > 7 * 8


def test_measure_gives_seconds_of_one_step():
    programs = [program("one", peak_bytes=5), program("many", steps=1000)]
    one, many = measure(programs, rounds=3)
    assert many["seconds"][0] < one["seconds"][0] / 100
    assert len(one["seconds"]) == 3
    assert (one["key"], one["peak_bytes"]) == ({"attention": "one"}, 5)


@pytest.mark.parametrize("words", ["RESOURCE_EXHAUSTED: no more", "out of memory"])
def test_measure_goes_on_where_memory_runs_out(words):
    full = program("full", jax.errors.JaxRuntimeError(words))
    rows = measure([full, program("fits")], rounds=3)
    assert [len(row["seconds"]) for row in rows] == [0, 3]
    with pytest.raises(RuntimeError, match="INTERNAL"):
        measure([program("broken", RuntimeError("INTERNAL"))], rounds=3)
