"""Who runs, who does not, in which turns, and what a row says of it."""

import jax
import numpy as np
import pytest

from nystromformer.experiments.bench.measure import (
    LEAST_SECONDS,
    free_bytes,
    interleaved,
    measure,
    measured_peak,
)
from nystromformer.experiments.bench.programs import (
    Program,
    copy_program,
    matmul_program,
)

MIB = 2**20


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
    matmul, copy = matmul_program("float32"), copy_program("float32")
    assert matmul.cost["flops"] == 2 * matmul.key["size"] ** 3
    assert copy.cost["bytes_accessed"] == 2 * 4 * copy.key["size"]
    return matmul, copy


def test_what_is_over_the_budget_does_not_run_and_the_smallest_runs_first(yardsticks):
    log, sizes = [], {"big": 101, "b": 100, "a": 5}
    programs = [program(x, log, num_bytes=n) for x, n in sizes.items()]
    rows = measure(programs, *yardsticks, rounds=7, budget_bytes=100)
    assert [row["key"]["attention"] for row in rows] == [*sizes]
    assert log[:4] == ["a", "a", "b", "b"]  # each to warm up, and for memory
    assert "big" not in log
    big, small, _ = rows
    assert "over the budget" in big["stopped"]
    assert (big["seconds"], big["measured_bytes"]) == (None, None)
    assert (small["stopped"], small["measured_bytes"]) == (None, 123)
    assert len(small["seconds"]) == 7


def test_seconds_and_rate_are_of_one_step(yardsticks):
    programs = [program(str(n), [], num_bytes=1, steps=n) for n in (1, 1000)]
    one, many = measure(programs, *yardsticks, rounds=7, budget_bytes=100)
    assert many["seconds"][0] < one["seconds"][0] / 100
    median = np.median(one["seconds"])
    share = 8 / median / one["matmul_flops_per_second"]
    assert one["matmul_share"] == pytest.approx(share)
    assert one["copy_share"] == pytest.approx(6 / median / one["copy_bytes_per_second"])


def test_memory_that_runs_out_is_a_row_and_other_errors_are_not(yardsticks):
    full = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no more")
    programs = [program("full", [], error=full), program("peer", [])]
    rows = measure(programs, *yardsticks, rounds=7, budget_bytes=0)
    assert rows[0]["stopped"] == "ran out of memory"
    assert rows[1]["stopped"] is rows[1]["cost"] is rows[1]["matmul_share"] is None
    assert len(rows[1]["seconds"]) == 7
    broken = program("broken", [], error=jax.errors.JaxRuntimeError("INTERNAL"))
    with pytest.raises(jax.errors.JaxRuntimeError):
        measure([broken], *yardsticks, rounds=7, budget_bytes=0)


def test_all_take_turns_each_begins_a_round_and_short_ones_run_several_times():
    time, log = [0.0], []

    def lasting(name, seconds):
        def run():
            time[0] += seconds
            log.append(name)

        return run

    runs = [lasting(x, 1.0) for x in "abc"]
    assert interleaved(runs, 3, lambda: time[0]) == [[1.0] * 3] * 3
    assert "".join(log) == "abc" + "abc" + "bca" + "cab"
    runs = [lasting("long", 3.0), lasting("short", LEAST_SECONDS / 8)]
    long, short = interleaved(runs, 7, lambda: time[0])
    assert long == pytest.approx([3.0] * 7)
    assert short == pytest.approx([LEAST_SECONDS / 8] * 7)
    assert log.count("short") > 7 * 8


def test_memory_held_at_once_counts_and_nothing_before():
    def run():
        for _ in range(3):  # freed in between: once, not three times
            np.ones(32 * MIB, np.uint8)

    free = free_bytes()
    assert free is None or free > 100 * MIB
    held = np.ones(64 * MIB, np.uint8)
    np.ones(256 * MIB, np.uint8)  # freed at once
    peak = measured_peak(run)
    if peak is None:
        pytest.skip("no counter on this machine")
    assert 31 <= peak / MIB <= 48
    assert held.all()
