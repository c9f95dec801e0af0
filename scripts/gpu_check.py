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

DIR is a new folder. DIR/results.jsonl has a line for each result, as soon as it is
known; DIR/logs has what each command printed, and DIR/runs the runs, which save when
they are stopped. To go on with one on another machine, copy its folder there and run
`python scripts/train.py` with the config that stands first in its log, and its workdir.
Neither network nor git is needed: Text and Image are left out if their data are not
prepared. A TPU admits one process at a time, so there nothing runs side by side.

The exit status is 1 if a check of correctness fails or does not end in time, and 128
plus the number of the signal if one has stopped the check. --smoke goes through every
stage on small sizes, in two minutes on a CPU.
"""

import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from absl import flags

from lra_tasks import LRA
from lra_tasks.task import get_task
from nystromformer.errors import ConfigError
from nystromformer.experiments import check_results, cli, correctness, provenance
from nystromformer.experiments.accelerator import (
    check_single_gpu,
    find_platform,
    has_peers,
)
from nystromformer.experiments.check_results import add_row
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.stages import (
    SECONDS_TO_SAVE,
    Command,
    num_workers,
    run_stage,
)

SCRIPTS = Path(__file__).parent
CONFIGS = SCRIPTS.parent / "configs"
TRAINED_TASKS = ("listops", "text", "image")
# Each stage is stopped after this many seconds; "train" gets what is left.
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


class Benchmark(NamedTuple):
    """What one stage measures by scripts/benchmark.py.

    Attributes:
      stage: the name of the stage.
      attentions: values of --attention.
      columns: flags --length=N or --task=NAME, one for each column of the table.
      settings: all other flags.
    """

    stage: str
    attentions: Sequence[str]
    columns: Sequence[str]
    settings: Sequence[str]


def main() -> None:
    """Runs the stages, and prints tables of the results."""
    out = cli.local_folder(_OUT.value)
    if _STAGE.value:
        out.mkdir(parents=True, exist_ok=True)
    if _STAGE.value == "device":
        add_row(out, {"stage": "device", **provenance.collect()})
        return
    if _STAGE.value == "correctness":
        check_correctness(out)
        return

    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out={out} is not empty: name a new folder, or delete it")
    deadline = time.monotonic() + _SECONDS.value
    platform = find_platform(takes_cpu=_SMOKE.value)
    # A TPU admits one process at a time.
    num_at_once = 1 if platform == "tpu" else num_workers()
    (out / "logs").mkdir(parents=True)
    with StopFlag() as stop:
        for stage, commands in list_stages(out).items():
            limit = deadline - time.monotonic() - SECONDS_TO_SAVE
            if stage in LIMITS and not _SMOKE.value:
                limit = min(limit, LIMITS[stage])
            run_stage(stage, commands, limit, out, stop, num_at_once)

    rows = check_results.read_rows(out)
    print("\n".join(check_results.format_rows(rows)))
    if stop.signum is not None:
        sys.exit(128 + stop.signum)
    failures = check_results.list_failures(rows)
    if failures:
        sys.exit("\n".join(["correctness FAILED:", *failures]))


def check_correctness(out: Path) -> None:
    """Checks every attention in this process, and adds a row for each case."""
    check_single_gpu(jax.default_backend(), jax.device_count())
    cases = correctness.list_cases(is_short=_SMOKE.value)
    add_row(out, {"stage": "correctness", "num_cases": len(cases)})
    for row in correctness.check_cases(cases, num_workers()):
        add_row(out, {"stage": "correctness", **row})


def list_stages(out: Path) -> dict[str, list[Command]]:
    """Returns the commands of each stage, in their order."""
    benchmarks = _smoke_benchmarks() if _SMOKE.value else _full_benchmarks()
    stages = {
        "device": [Command("device", stage_words("device", out))],
        "correctness": [correctness_command(out), *compile_commands(benchmarks, out)],
    }
    repeats = "--repeats=1" if _SMOKE.value else "--repeats=5"
    peers = ["--peers"] if not _SMOKE.value and has_peers() else []
    for benchmark in benchmarks:
        folder = out / "benchmark" / benchmark.stage
        words = [*benchmark_words(benchmark, folder), repeats, *peers]
        stages[benchmark.stage] = [Command(benchmark.stage, words)]
    stages["train"] = [train_command(task, out) for task in TRAINED_TASKS]
    return stages


def stage_words(stage: str, out: Path) -> list[str]:
    """The command of a stage that this script does itself."""
    return [
        sys.executable,
        __file__,
        f"--out={out}",
        f"--smoke={_SMOKE.value}",
        f"--stage={stage}",
    ]


def correctness_command(out: Path) -> Command:
    """The check of every attention, also of those that --load adds.

    All other commands name what they measure, so they load nothing.
    """
    words = stage_words("correctness", out)
    words.extend(f"--load={module}" for module in cli.loaded_modules())
    xla_flags = os.environ.get("XLA_FLAGS", "")
    if not _SMOKE.value:
        # The check needs right numbers, not fast ones: without autotuning XLA compiles
        # in a quarter of the time.
        xla_flags = f"{xla_flags} --xla_gpu_autotune_level=0".strip()
    return Command("correctness", words, env={"XLA_FLAGS": xla_flags})


def _full_benchmarks() -> list[Benchmark]:
    """What an accelerator is measured by."""
    # Table 1 measures the paper's equations, which have no convolution.
    nystrom = "nystrom-64,conv_kernel_size=0"
    fused_nystrom = f"{nystrom},fused=true"
    more_landmarks = "nystrom-256,conv_kernel_size=0,fused=true"
    wide_heads = ["--batch_size=4", "--num_heads=16", "--head_dim=128"]
    table_1 = ["--batch_size=2", "--num_heads=8", "--head_dim=64"]
    return [
        Benchmark(
            stage="attention",
            attentions=["softmax", "softmax,fused=false", nystrom, fused_nystrom],
            columns=["--length=512", "--length=2048", "--length=8192"],
            settings=[*table_1, "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="steps",
            attentions=["nystrom-64"],
            columns=[f"--task={task}" for task in LRA],
            settings=["--train_step", "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="wide",
            attentions=[nystrom, fused_nystrom, more_landmarks],
            columns=["--length=4096", "--length=131072"],
            settings=[*wide_heads, "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="float32",
            attentions=["softmax", nystrom],
            columns=["--length=512", "--length=2048"],
            settings=table_1,
        ),
    ]


def _smoke_benchmarks() -> list[Benchmark]:
    """The same stages in small sizes, for a CPU."""
    nystrom = "nystrom-8,fused=true"
    short_step = ["--train_step", "--batch_size=2", "--length=32"]
    return [
        Benchmark(
            stage="attention",
            attentions=["softmax", nystrom],
            columns=["--length=32"],
            settings=["--num_heads=2", "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="steps",
            attentions=["nystrom-64"],
            columns=["--task=text"],
            settings=[*short_step, "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="wide",
            attentions=[nystrom],
            columns=["--length=64"],
            settings=["--num_heads=2", "--dtype=bfloat16"],
        ),
        Benchmark(
            stage="float32",
            attentions=["softmax", nystrom],
            columns=["--length=32"],
            settings=["--num_heads=2"],
        ),
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


def train_command(task: str, out: Path) -> Command:
    """The run of a task, with the paper's preset in bfloat16."""
    preset = ",quick,smoke" if _SMOKE.value else ""
    config_file = f"{CONFIGS}/{task}.py:nystrom{preset}"
    words = [sys.executable, str(SCRIPTS / "train.py"), f"--config={config_file}"]
    words.append("--config.model.dtype=bfloat16")
    words.append(f"--workdir={out / 'runs' / task}")
    if _DATA_DIR.value:
        words.append(f"--config.task.data_dir={_DATA_DIR.value}")
    if _SMOKE.value and task == "listops":
        words.append("--config.task.num_train=200")
        words.append("--config.task.num_validation=50")
    return Command(f"train_{task}", words, missing=missing_data(config_file))


def missing_data(config_file: str) -> str:
    """Says which folder of data a run would fetch; "" if it has or draws its data."""
    config = load_config(config_file).task
    task = get_task(config.name, **config.options)
    folder = task.folder(_DATA_DIR.value or config.data_dir)
    is_fetched = task.archive is not None
    return f"no prepared data in {folder}" if is_fetched and not folder.exists() else ""


if __name__ == "__main__":
    cli.run(main)
