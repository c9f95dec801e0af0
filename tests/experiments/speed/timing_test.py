"""Programs take turns, and a row has seconds of one step, or none without memory."""

import time

import jax
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.speed import timing
from nystromformer.experiments.speed.timing import (
    MIN_SECONDS,
    Program,
    check_single_gpu,
    compile_program,
    find_path,
    measure,
    sample_in_turns,
)
from tests.experiments.speed.conftest import make_key


def program(name, error=None):
    """A program that does nothing, or raises an error."""

    def run():
        if error:
            raise error

    return Program(make_key(name), run)


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

    one_step = Program(make_key("one step"), run, peak_bytes=5)
    many_steps = Program(make_key("many steps"), run, steps=1000)
    row, row_of_many_steps = measure([one_step, many_steps], rounds=3)
    assert row.key == make_key("one step")
    assert row.peak_bytes == 5
    assert len(row.seconds) == 3
    assert min(row.seconds) >= 0.01
    assert 0 < max(row_of_many_steps.seconds) < 0.01


@pytest.mark.parametrize("text", ["RESOURCE_EXHAUSTED: no more", "out of memory"])
def test_measure_goes_on_where_memory_runs_out(text):
    full = program("full", jax.errors.JaxRuntimeError(text))
    rows = measure([full, program("fits")], rounds=3)
    assert [len(row.seconds) for row in rows] == [0, 3]


class TooLarge:
    """A function that a TPU's compiler refuses, as XLA for a v5e does."""

    def lower(self, *args):
        return self

    def as_text(self):
        return ""

    def compile(self):
        raise RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory on HBM")


def test_measure_goes_on_where_a_compiler_finds_that_memory_is_too_small():
    run, peak_bytes, _ = compile_program(TooLarge(), 1.0)
    assert peak_bytes is None
    too_large = Program(make_key("a"), lambda: run(1.0))
    rows = measure([too_large, program("b")], rounds=2)
    assert [len(row.seconds) for row in rows] == [0, 2]


def test_measure_runs_nothing_that_needs_more_memory_than_a_machine_has(
    tmp_path, monkeypatch
):
    """Its container may be allowed more than there is."""
    path = tmp_path / "memory.max"
    path.write_text(f"{2**62}\n")
    monkeypatch.setattr(timing, "CONTAINER_LIMIT", path)
    large = program("large", AssertionError("it was run"))
    large.peak_bytes = 2**60
    rows = measure([large, program("small")], 2)
    assert [len(row.seconds) for row in rows] == [0, 2]


@pytest.mark.parametrize(("limit", "num_rows"), [("1000", 0), ("max", 2)])
def test_measure_runs_nothing_that_needs_more_memory_than_its_container_has(
    tmp_path, monkeypatch, limit, num_rows
):
    path = tmp_path / "memory.max"
    path.write_text(f"{limit}\n")
    monkeypatch.setattr(timing, "CONTAINER_LIMIT", path)
    small = program("small")
    small.peak_bytes = 999
    large = program("large")
    large.peak_bytes = 1001
    rows = measure([small, large], 2)
    assert [len(row.seconds) for row in rows] == [2, num_rows]


def test_measure_leaves_the_memory_of_a_gpu_to_the_gpu(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    large = program("large")
    large.peak_bytes = 2**60  # more than this machine has
    [row] = measure([large], 2)
    assert len(row.seconds) == 2


def test_measure_checks_after_the_first_run_and_after_all():
    """This program works in its first two runs, and not from the third on."""
    log = []

    def check():
        log.append("check")
        if log.count("run") > 2:
            raise ConfigError("the third run failed")

    broken = Program(make_key("a"), lambda: log.append("run"), check=check)
    with pytest.raises(ConfigError, match="the third run failed"):
        measure([broken, program("works")], rounds=3)
    assert log[:2] == ["run", "check"]
    assert log.count("check") == 2
    assert log[-1] == "check"

    failing = Program(make_key("a"), lambda: log.append("run"), check=check)
    with pytest.raises(ConfigError, match="the third run failed"):
        measure([failing, program("not run", AssertionError())], rounds=3)


def test_measure_raises_other_errors():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        measure([program("broken", RuntimeError("INTERNAL"))], rounds=3)


def test_measure_waits_once_for_the_calls_of_a_sample(monkeypatch):
    """The program starts in no time, and takes a small part of a long sample."""
    monkeypatch.setattr(timing, "MIN_SECONDS", 10.0)
    log = []

    def wait(result):
        log.append(("wait", result))
        time.sleep(0.01)

    def run():
        log.append("run")
        return len(log)

    measure([Program(make_key("a"), run, wait)], rounds=2)
    num_waits = sum(1 for entry in log if entry != "run")
    # It waits to warm up, to count the calls, and in each round.
    assert num_waits == 4
    assert log.count("run") > 10 * num_waits
    # It waits for the result of the last call.
    for index, entry in enumerate(log):
        if entry != "run":
            assert log[index - 1] == "run"
            assert entry == ("wait", index)


def test_check_single_gpu_asks_for_one_of_several():
    check_single_gpu("gpu", 1)
    check_single_gpu("tpu", 8)
    check_single_gpu("cpu", 2)  # as with --xla_force_host_platform_device_count
    with pytest.raises(ConfigError, match="sees 8 GPUs"):
        check_single_gpu("gpu", 8)


def test_find_path_names_the_kernels_that_a_program_calls():
    call = "stablehlo.custom_call @{}(%0) : tensor<f32>\n"
    forward = call.format("__cudnn$fmhaSoftmax")
    backward = call.format("__cudnn$fmhaSoftmaxBackward")
    assert find_path("") == "XLA"
    assert find_path(forward + backward) == "XLA, cuDNN's attention"
    assert find_path(call.format("__gpu$xla.gpu.triton")) == "XLA, Pallas"
