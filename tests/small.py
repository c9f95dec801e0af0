"""Small settings that several tests share: they compile and train in seconds."""

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.config import Config
from nystromformer.errors import Interrupted
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.training.step import split_weights

# A test may load a run whose module registers an attention of its own. This is the
# table without it, whatever ran before in this process.
BUILT_IN_ATTENTIONS = {
    name: find_attention(name)
    for name in ATTENTIONS
    if find_attention(name).__module__.startswith("nystromformer.")
}
CONFIGS = Path(__file__).parents[1] / "configs"
# Flags of scripts/train.py.
SMALL = (
    "--config.model.num_layers=1",
    "--config.model.model_dim=8",
    "--config.model.mlp_dim=8",
    "--config.attention.num_landmarks=4",
    "--config.task.num_train=300",
    "--config.task.num_validation=50",
    "--config.task.num_test=50",
    "--config.optimizer.warmup_steps=10",
    "--config.train.num_steps=200",
    "--config.train.log_every=10",
    "--config.train.eval_every=40",
    "--config.train.checkpoint_every=40",
)


def make_config(arg: str = "nystrom", task: str = "listops", **changes) -> Config:
    """Loads a task's config; a change is named group__key, as in train__seed=7."""
    groups = load_config(f"{CONFIGS}/{task}.py:{arg}").to_mapping()
    for path, value in changes.items():
        group, key = path.split("__")
        groups[group][key] = value
    return Config.from_mapping(groups)


def prefixed(group: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Names the options of a group as `make_config` takes them: model__pooling."""
    return {f"{group}__{key}": value for key, value in options.items()}


@contextlib.contextmanager
def stopped_at_once() -> Iterator[None]:
    """Stops a run after its first chunk, as SIGTERM does."""

    def enter(stop: StopFlag) -> StopFlag:
        stop.signum = signal.SIGTERM
        return stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopFlag, "__enter__", enter)
        with pytest.raises(Interrupted, match="stopped by SIGTERM at step 1"):
            yield


def untrained(arg: str, task: str = "listops", **changes) -> TrainedRun:
    """Makes a run whose weights are those it began with."""
    experiment = Experiment(make_config(arg, task, **changes))
    _, weights = split_weights(experiment.make_model(nnx.Rngs(1)))
    return TrainedRun(experiment, jax.device_get(weights), None)


def result_of(workdir: Path) -> dict[str, Any]:
    """The result of a finished run."""
    return json.loads((workdir / "result.json").read_text())


# Fields that depend on the clock or the checkout.
CIRCUMSTANCES = {"wall_seconds", "examples_per_second", "sessions", "commit", "command"}


def numbers(workdir: Path) -> list[dict[str, Any]]:
    """The result and the metrics of a finished run, without circumstances."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [result_of(workdir), *map(json.loads, lines)]
    return [{key: row[key] for key in row.keys() - CIRCUMSTANCES} for row in rows]


def losses(workdir: Path) -> list[float]:
    """The training losses, line by line."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == "train"]
