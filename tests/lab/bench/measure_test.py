"""Who runs, who does not, in which turns, and what a row says of it."""

import jax
import pytest

from nystromformer.lab.bench.measure import (
    LEAST_SECONDS,
    fits,
    interleaved,
    measure,
    quartiles,
)
from nystromformer.lab.bench.programs import Program, copy_program, matmul_program


def program(name, log, *, num_bytes=None, steps=1, error=None):
    def run():
        log.append(name)
        if error:
            raise error

    cost = num_bytes and {"peak_bytes": num_bytes, "bytes_accessed": 6, "flops": 8}
    key = {"what": "forward", "attention": name, "length": 4}
    return Program(key, run, cost, steps, lambda run: run() or 123)


@pytest.fixture(scope="module")
def yardsticks():
    return matmul_program("float32"), copy_program("float32")


def test_what_is_over_the_budget_does_not_run(yardsticks):
    log = []
    programs = [
        program("big", log, num_bytes=101),
        program("small", log, num_bytes=100),
    ]
    assert [fits(p, 100) for p in programs] == [False, True]
    big, small = measure(programs, *yardsticks, rounds=7, budget_bytes=100)
    assert set(log) == {"small"}
    assert "over the budget" in big["stopped"]
    assert (big["seconds"], big["measured_bytes"]) == (None, None)
    assert big["cost"]["peak_bytes"] == 101
    assert small["stopped"] is None
    assert small["measured_bytes"] == 123
    assert len(small["seconds"]) == 7


def test_the_smallest_runs_first_and_rows_keep_their_order(yardsticks):
    log = []
    programs = [program("b", log, num_bytes=50), program("a", log, num_bytes=5)]
    rows = measure(programs, *yardsticks, rounds=7, budget_bytes=100)
    assert log[:2] == ["a", "a"]  # warm-up and memory
    assert [row["key"]["attention"] for row in rows] == ["b", "a"]


def test_seconds_and_rate_are_of_one_step(yardsticks):
    log = []
    programs = [program(str(n), log, num_bytes=1, steps=n) for n in (1, 1000)]
    one, many = measure(programs, *yardsticks, rounds=7, budget_bytes=100)
    assert many["seconds"][0] < one["seconds"][0] / 100
    rate = one["cost"]["flops"] / quartiles(one["seconds"])[1]
    share = rate / one["matmul_flops_per_second"]
    assert one["matmul_share"] == pytest.approx(share)
    rate = 6 / quartiles(one["seconds"])[1]
    share = rate / one["copy_bytes_per_second"]
    assert one["copy_share"] == pytest.approx(share)


def test_memory_that_runs_out_is_a_row_and_other_errors_are_not(yardsticks):
    log = []
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no more")
    programs = [program("full", log, error=full), program("peer", log)]
    rows = measure(programs, *yardsticks, rounds=7, budget_bytes=0)
    assert rows[0]["stopped"] == "ran out of memory"
    assert rows[1]["stopped"] is rows[1]["cost"] is rows[1]["matmul_share"] is None
    assert len(rows[1]["seconds"]) == 7
    broken = program("broken", log, error=jax.errors.JaxRuntimeError("INTERNAL"))
    with pytest.raises(jax.errors.JaxRuntimeError):
        measure([broken], *yardsticks, rounds=7, budget_bytes=0)


def test_quartiles_of_seven():
    assert quartiles([7, 1, 5, 3, 2, 6, 4]) == (2.5, 4, 5.5)


class Clock:
    """Programs of known length, and the order in which they ran."""

    def __init__(self):
        self.time, self.log = 0.0, []

    def program(self, name, seconds):
        def run():
            self.time += seconds
            self.log.append(name)

        return run


def test_all_take_turns_each_begins_a_round_and_short_ones_run_several_times():
    clock = Clock()
    runs = [clock.program(x, 1.0) for x in "abc"]
    assert interleaved(runs, 3, lambda: clock.time) == [[1.0] * 3] * 3
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab"
    runs = [clock.program("long", 3.0), clock.program("short", LEAST_SECONDS / 8)]
    long, short = interleaved(runs, 7, lambda: clock.time)
    assert long == pytest.approx([3.0] * 7)
    assert short == pytest.approx([LEAST_SECONDS / 8] * 7)
    assert clock.log.count("short") > 7 * 8
