"""Trains one model on one task, or goes on where that was stopped.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR \
        [--config.group.key=value …] [--max_minutes=60]

The same command again goes on where a run was stopped: by SIGTERM (exit status 143),
Ctrl-C (130) or after --max_minutes (142), each of which saves first.
"""

import dataclasses
import signal
from pathlib import Path
from typing import Any

from absl import flags
from filelock import FileLock, Timeout
from ml_collections import config_flags

from nystromformer.config import Config, ConfigError
from nystromformer.training.loop import Run, Schedule
from nystromformer.training.writer import write_json
from scripts import command
from scripts.compilation_cache import keep_compiled_programs
from scripts.experiment import RESULT_FILE, Experiment, open_workdir, read_result
from scripts.provenance import commit, device, versions

_CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py[:ATTENTION,PRESET]")
_WORKDIR = flags.DEFINE_string("workdir", None, "where the run lives; made if missing")
_MAX_MINUTES = flags.DEFINE_float(
    "max_minutes", None, "save and stop after this time", lower_bound=0.001
)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    if _MAX_MINUTES.value:
        signal.setitimer(signal.ITIMER_REAL, 60 * _MAX_MINUTES.value)
    keep_compiled_programs()
    config = Config.from_mapping(_CONFIG.value.to_dict())
    experiment = Experiment.from_config(config)
    workdir = Path(str(_WORKDIR.value)).expanduser()
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(workdir / "lock", timeout=0):
            open_workdir(workdir, config)
            result = read_result(workdir)
            if result:
                print(f"{workdir} is finished; delete it to run again")
            print(summary(result or train(experiment, workdir)))
    except Timeout:
        raise ConfigError(f"another process is training in {workdir}") from None


def train(experiment: Experiment, workdir: Path) -> dict[str, Any]:
    """Trains to the end, from wherever the workdir stands, and writes the result."""
    config = experiment.config
    started_at = commit()
    print(
        f"{config.task.name} with {config.attention.name}: "
        f"{experiment.num_params:,} parameters, {config.train.num_steps:,} steps of "
        f"{config.train.batch_size} on {device()}"
    )
    splits = experiment.load()
    floors = experiment.task.floors(splits["train"], splits["test"])
    schedule = Schedule(**dataclasses.asdict(config.train))
    run = Run(
        experiment.make_model, experiment.make_optimizer(), schedule, splits, workdir
    )
    outcome = run.fit()
    result = {
        "task": config.task.name,
        "attention": config.attention.name,
        "seed": config.train.seed,
        "num_params": experiment.num_params,
        **dataclasses.asdict(outcome),
        "floors": floors,
        "device": device(),
        "versions": versions(),
        "commit": started_at,
        "data_sha256": {name: split.content_hash() for name, split in splits.items()},
    }
    write_json(workdir / RESULT_FILE, result)
    return result


def summary(result: dict[str, Any]) -> str:
    """The result beside its floors, for people."""
    lines = [
        f"{result['task']} with {result['attention']}, seed {result['seed']}: best "
        f"validation accuracy {result['validation_accuracy']:.2%} at step "
        f"{result['best_step']:,}",
        f"test accuracy {result['test_accuracy']:.2%} "
        f"({result['test_examples']:,} examples)",
    ]
    for name, accuracy in result["floors"].items():
        lines.append(f"  floor: {accuracy:6.2%}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    command.run(main)
