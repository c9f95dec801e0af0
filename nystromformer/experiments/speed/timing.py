"""How programs are timed: in turns, so that none has a better machine than others."""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from nystromformer.errors import ConfigError
from nystromformer.experiments.speed.rows import Row, RowKey
from nystromformer.training.step import program_bytes

# A sample takes at least this long; a shorter program runs several times in it.
MIN_SECONDS = 0.02
# What the RuntimeErrors of JAX and PyTorch say if the memory is too small.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "out of memory")
# A container's limit in bytes, or "max"; without a container there is no such file.
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
# What a program calls, by a part of the call's name in its text before it is compiled.
KERNELS = {
    "__cudnn$fmha": "cuDNN's attention",
    "__gpu$xla.gpu.triton": "Pallas",
    "mosaic_gpu": "Pallas",
    "tpu_custom_call": "Pallas",
}


@dataclasses.dataclass
class Program:
    """A program that is timed.

    key: what it is, for the JSON of the benchmark.
    run: starts it, and returns what `wait` waits for; on a CPU it has ended by then.
    wait: waits for the end of all runs, given the result of the last one.
    check: raises a ConfigError if the last run did not do its work; called after the
      first run and after all, since it may fetch numbers from the device, which takes
      time.
    peak_bytes: its memory, arguments and results included; None if unknown.
    path: the kernels that compute it, as in "XLA, cuDNN's attention".
    steps: the number of steps in one run; the time of one step is reported.
    """

    key: RowKey
    run: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready
    check: Callable[[], None] = lambda: None
    peak_bytes: int | None = None
    path: str = ""
    steps: int = 1


class Compiled(NamedTuple):
    """A compiled function.

    call: the function. If the compiler already finds that the memory is too small, as
      a TPU's does, a call raises its error.
    peak_bytes: the bytes that it needs; None if unknown.
    path: the kernels that compute it, as in "XLA, cuDNN's attention".
    """

    call: Callable[..., Any]
    peak_bytes: int | None
    path: str


def check_single_gpu(platform: str, num_devices: int) -> None:
    """Raises ConfigError if JAX sees several GPUs.

    A benchmark would use one of them, but `softmax` would not be cuDNN's kernel, which
    it is only where there is a single GPU.
    """
    if platform == "gpu" and num_devices > 1:
        raise ConfigError(
            f"JAX sees {num_devices} GPUs, and one is measured: set "
            "CUDA_VISIBLE_DEVICES=0, or the number of another one"
        )


def compile_program(function: Any, *args: Any) -> Compiled:
    """Compiles a jitted function for these arguments."""
    lowered = function.lower(*args)
    path = find_path(lowered.as_text())
    try:
        compiled = lowered.compile()
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        return Compiled(functools.partial(_raise, error), None, path)
    return Compiled(compiled, program_bytes(compiled), path)


def find_path(text: str) -> str:
    """Names the kernels that a program calls beside what XLA makes itself.

    Args:
      text: the program before it is compiled, for the platform where it runs.
    """
    kernels = [name for call, name in KERNELS.items() if call in text]
    return ", ".join(dict.fromkeys(["XLA", *kernels]))


def _raise(error: RuntimeError, *_: Any) -> NoReturn:
    """Raises an error, in the place of a program that could not be compiled."""
    raise error


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether JAX or PyTorch raised an error because the memory is too small."""
    return any(text in str(error) for text in OUT_OF_MEMORY)


def wait_on_cpu(result: Any) -> None:
    """On a CPU, waits for a call to end; otherwise JAX runs several at once."""
    if jax.default_backend() == "cpu":
        jax.block_until_ready(result)


def measure(programs: Sequence[Program], rounds: int) -> list[Row]:
    """Times programs in turns, and checks them before and after.

    Args:
      programs: what is timed.
      rounds: how often each gets its turn; 0 runs nothing.

    Returns:
      A row for each program.

    Raises:
      ConfigError: if the check of a program fails.
    """
    rows = []
    runnable = []
    for program in programs:
        row = Row(
            key=program.key,
            peak_bytes=program.peak_bytes,
            path=program.path,
            seconds=[],
        )
        rows.append(row)
        if rounds > 0 and _warm_up(program):
            program.check()
            runnable.append((program, row))

    runs = [functools.partial(_run_together, program) for program, _ in runnable]
    samples = sample_in_turns(runs, rounds)
    for (program, row), seconds in zip(runnable, samples, strict=True):
        program.check()
        row.seconds = [x / program.steps for x in seconds]
    return rows


def _run_together(program: Program, num_calls: int) -> None:
    """Runs a program several times, and waits once.

    On an accelerator a call that is waited for also takes the time to start it, which
    is longer than many a program.
    """
    result = None
    for _ in range(num_calls):
        result = program.run()
    program.wait(result)


def sample_in_turns(
    runs: Sequence[Callable[[int], Any]],
    rounds: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Returns the seconds of one call of each, in each round.

    The functions are called in a cycle, and every round begins one place later, so that
    over several rounds none is always the first.

    Args:
      runs: functions of a number of calls, each of which has been called before.
      rounds: how often each is sampled.
      now: the clock.
    """

    def seconds_per_call(run: Callable[[int], Any], num_calls: int) -> float:
        start = now()
        run(num_calls)
        return (now() - start) / num_calls

    calls_per_sample = []
    for run in runs:
        seconds = max(seconds_per_call(run, 1), 1e-6)
        calls_per_sample.append(1 + int(MIN_SECONDS / seconds))

    samples: list[list[float]] = [[] for _ in runs]
    for first in range(rounds):
        for index in np.roll(range(len(runs)), -first):
            seconds = seconds_per_call(runs[index], calls_per_sample[index])
            samples[index].append(seconds)
    return samples


def _warm_up(program: Program) -> bool:
    """Runs a program once; returns False if the memory is too small for it."""
    # Where a GPU raises an error, a CPU's operating system ends this whole process.
    if (
        jax.default_backend() == "cpu"
        and program.peak_bytes is not None
        and program.peak_bytes > _available_bytes()
    ):
        return False

    try:
        program.wait(program.run())
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        return False
    return True


def _available_bytes() -> int:
    """The memory of this machine, or the limit of this container if that is lower."""
    num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if CONTAINER_LIMIT.exists():
        limit = CONTAINER_LIMIT.read_text().strip()
        if limit != "max":
            num_bytes = min(num_bytes, int(limit))
    return num_bytes
