"""Checks and measures this machine's accelerator in ten minutes.

    python scripts/gpu_check.py --out=DIR [--seconds=570] [--data_dir=DATA]
    python scripts/gpu_check.py --out=DIR --smoke

goes through these stages, each with a limit in seconds:

    device       what computes, and the versions
    correctness  every attention beside float64 on the host; meanwhile the programs that
                 the next stages need are compiled, several at a time
    attention    Table 1 of the paper in bfloat16, beside cuDNN and PyTorch
    steps        train steps of the five tasks, beside transformers'
    wide         Nyström attention of 16 heads of 128, up to 131,072 tokens
    float32      Table 1 in float32
    train        runs of ListOps, Text and Image, side by side, to the end of the time

DIR/results.jsonl has a line for each result, as soon as it is known; DIR/logs has what
each command printed, and DIR/runs the runs. These have saved when they are stopped:
copied to another machine, `python scripts/train.py` with the config and the workdir of
their log goes on there. Neither network nor git is needed; a task whose data are not
there is left out.

The exit status is 1 if a check of correctness fails or does not end in time. --smoke
goes through every stage on small sizes, in two minutes on a CPU.
"""

import importlib.util
import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from lra_tasks import LRA
from nystromformer.experiments import check_results, cli, correctness, provenance
from nystromformer.experiments.check_results import add_row
from nystromformer.experiments.cores import num_cores

SCRIPTS = Path(__file__).parent
CONFIGS = SCRIPTS.parent / "configs"
SECONDS_TO_SAVE = 20  # of a training run, from the signal on
# Of a stage; "train" gets what is left.
LIMITS = {
    "device": 40,
    "correctness": 180,
    "attention": 70,
    "steps": 70,
    "wide": 40,
    "float32": 20,
}

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_SECONDS = flags.DEFINE_integer("seconds", 570, "limit of all stages together", 60)
_SMOKE = flags.DEFINE_bool("smoke", False, "small sizes, for a CPU")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the prepared data")
_STAGE = flags.DEFINE_enum(
    "stage", None, ["device", "correctness"], "do what this stage does, in this process"
)


class Command(NamedTuple):
    """A command of a stage.

    name: of its log and its row.
    words: what is run.
    env: changes of the environment variables.
    """

    name: str
    words: list[str]
    env: Mapping[str, str] = {}


class Benchmark(NamedTuple):
    """Calls of scripts/benchmark.py.

    stage: the stage that measures all of it.
    attentions: their labels.
    columns: the flags of lengths or tasks.
    settings: the other flags.
    """

    stage: str
    attentions: Sequence[str]
    columns: Sequence[str]
    settings: Sequence[str]


def main() -> None:
    """Runs the stages, and prints tables of the results."""
    out = Path(_OUT.value).expanduser()
    if _STAGE.value == "device":
        add_row(out, {"stage": "device", **provenance.source()})
        return
    if _STAGE.value == "correctness":
        check_correctness(out)
        return

    (out / "logs").mkdir(parents=True, exist_ok=True)
    (out / check_results.FILE).unlink(missing_ok=True)
    deadline = time.monotonic() + _SECONDS.value
    for stage, commands in list_stages(out).items():
        limit = deadline - time.monotonic() - SECONDS_TO_SAVE
        if stage in LIMITS and not _SMOKE.value:
            limit = min(limit, LIMITS[stage])
        run_stage(stage, commands, limit, out)

    rows = check_results.read_rows(out)
    print("\n".join(check_results.format_rows(rows)))
    failures = check_results.list_failures(rows)
    if failures:
        sys.exit("\n".join(["correctness FAILED:", *failures]))


def check_correctness(out: Path) -> None:
    """Checks every attention in this process, and adds a row for each case."""
    cases = correctness.list_cases(is_short=_SMOKE.value)
    add_row(out, {"stage": "correctness", "num_cases": len(cases)})
    for row in correctness.check_cases(cases, num_workers()):
        add_row(out, {"stage": "correctness", **row})


def num_workers() -> int:
    """How many commands or checks run side by side."""
    return 1 + num_cores() // 2


def list_stages(out: Path) -> dict[str, list[Command]]:
    """Returns the commands of each stage, in their order."""
    this_script = [sys.executable, __file__, f"--out={out}"]
    this_script.append(f"--smoke={_SMOKE.value}")
    this_script.extend(f"--load={module}" for module in cli.loaded_modules())
    # Without tuning, a program is compiled in a quarter of the time.
    tuning = "" if _SMOKE.value else "--xla_gpu_autotune_level=0"
    xla_flags = f"{os.environ.get('XLA_FLAGS', '')} {tuning}".strip()
    check = [*this_script, "--stage=correctness"]
    benchmarks = list_benchmarks()
    stages = {
        "device": [Command("device", [*this_script, "--stage=device"])],
        "correctness": [
            Command("correctness", check, {"XLA_FLAGS": xla_flags}),
            *compile_commands(benchmarks, out),
        ],
    }
    repeats = "--repeats=1" if _SMOKE.value else "--repeats=5"
    peers = ["--peers"] if has_peers() else []
    for benchmark in benchmarks:
        folder = out / "benchmark" / benchmark.stage
        words = [*benchmark_words(benchmark, folder), repeats, *peers]
        stages[benchmark.stage] = [Command(benchmark.stage, words)]
    tasks = ("listops",) if _SMOKE.value else ("listops", "text", "image")
    stages["train"] = [train_command(task, out) for task in tasks]
    return stages


def list_benchmarks() -> list[Benchmark]:
    """Returns what the stages measure."""
    # Table 1 measures the paper's equations, which have no convolution.
    nystrom = "nystrom-64,conv_kernel_size=0"
    pair = [nystrom, f"{nystrom},fused=true"]
    exact = ["softmax", "softmax,fused=false"]
    lengths = ["--length=512", "--length=2048", "--length=8192"]
    long = ["--length=4096", "--length=131072"]
    tasks = [f"--task={task}" for task in LRA]
    alone = ["--batch_size=2", "--num_heads=8", "--head_dim=64"]
    wide = ["--batch_size=4", "--num_heads=16", "--head_dim=128"]
    step = ["--train_step"]
    half = "--dtype=bfloat16"
    if _SMOKE.value:
        pair = ["nystrom-8,fused=true"]
        exact = ["softmax"]
        lengths = ["--length=32"]
        long = ["--length=64"]
        tasks = ["--task=text"]
        alone = wide = ["--num_heads=2"]
        step = ["--train_step", "--batch_size=2", "--length=32"]
    return [
        Benchmark("attention", [*exact, *pair], lengths, [*alone, half]),
        Benchmark("steps", ["nystrom-64"], tasks, [*step, half]),
        Benchmark("wide", pair, long, [*wide, half]),
        Benchmark("float32", [exact[0], pair[0]], lengths[:2], alone),
    ]


def benchmark_words(benchmark: Benchmark, folder: Path) -> list[str]:
    """The command of a benchmark, which writes into a folder."""
    words = [sys.executable, str(SCRIPTS / "benchmark.py"), f"--out={folder}"]
    attentions = [f"--attention={label}" for label in benchmark.attentions]
    return [*words, *attentions, *benchmark.columns, *benchmark.settings]


def compile_commands(benchmarks: Sequence[Benchmark], out: Path) -> Iterator[Command]:
    """Yields small parts of benchmarks, which fill the cache of compiled programs.

    They run side by side, and their times are not kept.
    """
    for benchmark in benchmarks:
        parts = itertools.product(benchmark.attentions, benchmark.columns)
        for label, column in parts:
            name = f"compile_{benchmark.stage}_{label}_{column.partition('=')[2]}"
            part = benchmark._replace(attentions=[label], columns=[column])
            words = benchmark_words(part, out / "compile" / name)
            yield Command(name, [*words, "--repeats=1"])


def has_peers() -> bool:
    """Whether PyTorch and transformers are installed, and see the accelerator."""
    libraries = ("torch", "transformers")
    if _SMOKE.value or not all(map(importlib.util.find_spec, libraries)):
        return False
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program]).returncode == 0


def train_command(task: str, out: Path) -> Command:
    """The run of a task, with the paper's preset in bfloat16."""
    preset = ",quick,smoke" if _SMOKE.value else ""
    words = [sys.executable, str(SCRIPTS / "train.py")]
    words.append(f"--config={CONFIGS}/{task}.py:nystrom{preset}")
    words.append("--config.model.dtype=bfloat16")
    words.append(f"--workdir={out / 'runs' / task}")
    if _DATA_DIR.value:
        words.append(f"--config.task.data_dir={_DATA_DIR.value}")
    if _SMOKE.value:
        words += ["--config.task.num_train=200", "--config.task.num_validation=50"]
    return Command(f"train_{task}", words)


def run_stage(stage: str, commands: Sequence[Command], limit: float, out: Path) -> None:
    """Runs the commands of a stage side by side, and adds a row for each."""
    deadline = time.monotonic() + limit
    with ThreadPoolExecutor(num_workers()) as pool:
        futures = [pool.submit(run_command, x, deadline, out) for x in commands]
        for future in as_completed(futures):
            row = future.result()
            add_row(out, {"stage": stage, **row})
            print(f"{row['command']}: {row['status']}, {row['seconds']:.0f} s")
    for row in check_results.read_benchmark(out / "benchmark" / stage):
        add_row(out, {"stage": stage, **row})


def run_command(command: Command, deadline: float, out: Path) -> dict[str, Any]:
    """Runs a command until its deadline, and says how it ended."""
    start = time.monotonic()
    row: dict[str, Any] = {"command": command.name, "status": "ok", "seconds": 0.0}
    if start >= deadline:
        return row | {"status": "not begun: no time was left"}
    log = out / "logs" / f"{command.name}.txt"
    with open(log, "a") as stream:
        print(shlex.join(command.words), file=stream, flush=True)
        process = subprocess.Popen(
            command.words,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **shared_env(out), **command.env},
            start_new_session=True,
        )
        try:
            process.wait(deadline - start)
        except subprocess.TimeoutExpired:
            row["status"] = "stopped at its limit"
            stop(process)
    if process.returncode and row["status"] == "ok":
        last_line = log.read_text().strip().splitlines()[-1]
        row["status"] = f"failed, status {process.returncode}: {last_line[:300]}"
    return row | {"seconds": round(time.monotonic() - start, 1)}


def stop(process: subprocess.Popen) -> None:
    """Ends a process and its children. A training run saves first."""
    process.terminate()
    try:
        process.wait(SECONDS_TO_SAVE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def shared_env(out: Path) -> dict[str, str]:
    """What every command starts with: several share one accelerator and one cache."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(out / "cache"))
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
    }


if __name__ == "__main__":
    cli.run(main)
