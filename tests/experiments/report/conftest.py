"""Runs as files: what scripts/train.py leaves behind, with numbers that a test sets."""

import json
from pathlib import Path
from typing import Any

import pytest

from nystromformer.experiments.report.frame import make_frame
from nystromformer.experiments.report.runs import read_runs
from nystromformer.training.files import write_json
from tests.small import make_config

FLOORS = {"majority class": 0.12, "root operator": 0.25}


class Runs:
    """Makes run folders below one folder.

    A change is named group__key, as in attention__num_landmarks=16.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def config(
        self, arg="nystrom,quick", task="listops", seed=0, **changes
    ) -> dict[str, Any]:
        """A config as its file and flags give it."""
        return make_config(arg, task, train__seed=seed, **changes).to_mapping()

    def unfinished(self, name: str, steps=(50,), **config: Any) -> Path:
        """A run on its way, with a row of metrics for each split at these steps."""
        workdir = self.folder / name
        workdir.mkdir(parents=True)
        write_json(workdir / "config.json", self.config(**config))
        rows = [
            {"step": step, "split": split, "loss": 1 / step, "accuracy": x}
            for step, x in ((step, min(0.9, step / 10_000)) for step in steps)
            for split in ("train", "validation")
        ]
        lines = [json.dumps(row) + "\n" for row in rows]
        (workdir / "metrics.jsonl").write_text("".join(lines))
        return workdir

    def finished(
        self, name: str, accuracy=0.5, result: dict[str, Any] | None = None, **config
    ) -> Path:
        """A run that has come to this test accuracy; `result` changes result.json."""
        found = self.config(**config)
        steps = found["train"]["num_steps"]
        workdir = self.unfinished(name, steps=(steps // 2, steps), **config)
        content = {
            "task": found["task"]["name"],
            "attention": found["attention"]["name"],
            "seed": found["train"]["seed"],
            "num_params": 81942,
            "steps": steps,
            "best_step": steps // 2,
            "validation_accuracy": 0.5,
            "test_accuracy": accuracy,
            "test_loss": 1.1,
            "test_examples": 2000,
            "params_sha256": "f" * 64,
            "wall_seconds": 350.26,
            "examples_per_second": 500.0,
            "floors": FLOORS,
            "device": "CPU x86_64, 2 cores",
            "versions": {"python": "3.11.7", "jax": "0.10.2"},
            "commit": "c" * 40,
            "data_sha256": dict.fromkeys(("train", "validation", "test"), "a" * 64),
        }
        write_json(workdir / "result.json", {**content, **(result or {})})
        return workdir


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


def read_frame(runs: Runs) -> tuple[Any, list[str]]:
    """The frame of all of them, and what is left out of it."""
    found, skipped = read_runs([runs.folder])
    assert skipped == []
    return make_frame(found)
