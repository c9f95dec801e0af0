"""Workdirs as scripts/train.py leaves them, with numbers that a test chooses."""

import json
from pathlib import Path
from typing import Any

import pytest

from nystromformer.experiments.report.runs import read_runs
from tests.small import make_config

FLOORS = {"majority class": 0.12, "root operator": 0.25}


class Runs:
    """Writes runs below one folder, and reads them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def add(
        self,
        name: str,
        test: float | None = None,
        arg: str = "nystrom,quick",
        task: str = "listops",
        seed: int = 0,
        command: str = "",
        result: dict[str, Any] | None = None,
        steps: tuple[int, ...] = (50, 100),
        **changes: Any,
    ) -> Path:
        """A run of this test accuracy, or an unfinished one, with rows at `steps`.

        `command` are flags of its command line, `result` changes of result.json, and
        `changes` changes of its config, as in train__num_steps=7.
        """
        workdir = self.folder / name
        workdir.mkdir(parents=True)
        config = make_config(arg, task, train__seed=seed, **changes).to_mapping()
        attention, _, preset = arg.partition(",")
        config |= {"preset": preset or "paper", "load": ()}
        (workdir / "config.json").write_text(json.dumps(config))
        rows = [
            {"step": step, "split": split, "loss": 2 / step, "accuracy": step / 1000}
            for step in steps
            for split in ("train", "validation")
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (workdir / "metrics.jsonl").write_text(lines)
        if test is not None:
            found = {
                "metric": "accuracy",
                "test_accuracy": test,
                "validation_accuracy": test,
                "test_examples": 2000,
                "floors": FLOORS,
                "other_floors": {},
                "fraction_exact": 0.0,
                "num_params": 81942,
                "examples_per_second": 500.0,
                "compiled_bytes": 3 * 2**20,
                "peak_bytes": None,
                "device": "CPU x86_64, 2 cores",
                "commit": "c" * 40,
                "command": f"python train.py --config=x.py:{attention} {command}",
            }
            (workdir / "result.json").write_text(json.dumps(found | (result or {})))
        return workdir

    def read(self) -> Any:
        """The frame of all of them, none of which is left out."""
        frame, doubles = read_runs([self.folder])
        assert doubles == []
        return frame


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


@pytest.fixture
def three(runs):
    """Two seeds of nystrom and one of softmax."""
    runs.add("nystrom-0", 0.50)
    runs.add("nystrom-1", 0.53, seed=1)
    runs.add("softmax-1", 0.47, arg="softmax,quick", seed=1)
    return runs
