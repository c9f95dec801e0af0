"""Workdirs as scripts/train.py leaves them, with numbers that a test chooses."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from nystromformer.experiments.report.tables import score_table
from tests.small import make_config

# The row of softmax with the paper's options.
DROPOUT = "dropout 0.1 on its weights"
SOFTMAX = f"softmax, {DROPOUT}"
RESULT = {
    "command": "python scripts/train.py --config=configs/listops.py --workdir=runs/a",
    "metric": "accuracy",
    "test_examples": 2000,
    "num_params": 81942,
    "floors": {"majority class": 0.12, "root operator": 0.25},
    "other_floors": {},
    "fraction_exact": 0.0,
    "examples_per_second": 500.0,
    "compiled_bytes": 3 * 2**20,
    "device": "CPU, 2 cores",
    "commit": "c0ffee",
}


class Runs:
    """Writes runs below one folder, and reads them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def add(
        self,
        arg: str,
        test: float | None = None,
        task: str = "listops",
        seed: int = 0,
        result: dict[str, Any] | None = None,
        steps: tuple[int, ...] = (50, 100),
        **changes: Any,
    ) -> Path:
        """A run of this test accuracy, or an unfinished one, with metrics at `steps`.

        A change that its command makes in the config is named group__key, as in
        train__num_steps=700.
        """
        number = len(list(self.folder.glob("*")))
        workdir = self.folder / f"{number:02}"
        workdir.mkdir(parents=True)
        _, _, preset = arg.partition(",")
        config = make_config(arg, task, train__seed=seed, **changes).to_mapping()
        overrides = {key.replace("__", "."): value for key, value in changes.items()}
        config |= {"preset": preset or "paper", "load": (), "overrides": overrides}
        (workdir / "config.json").write_text(json.dumps(config))
        with open(workdir / "metrics.jsonl", "w") as file:
            for step, split in itertools.product(steps, ("train", "validation")):
                row = {"step": step, "split": split}
                row |= {"loss": 2 / step, "accuracy": step / 1000}
                file.write(json.dumps(row) + "\n")
        if test is not None:
            values = RESULT | {"test_accuracy": test} | (result or {})
            (workdir / "result.json").write_text(json.dumps(values))
        return workdir

    def read(self) -> Any:
        """The frame of all of them."""
        return make_frame(read_records([self.folder]))


def delete_settings(workdir: Path, *names: str) -> None:
    """Rewrites a run's config as a version without these settings has saved it."""
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    for name in names:
        group, key = name.split(".", maxsplit=1)
        del config[group][key]
    path.write_text(json.dumps(config))


def set_settings(workdir: Path, settings: dict[str, Any]) -> None:
    """Changes a run's config behind its back, as in {"train.seed": 3}."""
    path = workdir / "config.json"
    config = json.loads(path.read_text())
    for name, value in settings.items():
        *groups, key = name.split(".")
        settings_of_group = config[groups[0]] if groups else config
        settings_of_group[key] = value
    path.write_text(json.dumps(config))


def labels(runs: Runs, task: str = "listops") -> list[str]:
    """The names of the rows of a task."""
    frame = runs.read()
    return list(dict.fromkeys(frame["label"][frame["task"] == task]))


def scores(runs):
    """The cells of the table of scores, by the names of their row and their column."""
    return score_table(runs.read()).set_index("attention").to_dict("index")


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path / "runs")


@pytest.fixture
def three(runs):
    """Two seeds of nystrom and one of softmax."""
    runs.add("nystrom,quick", 0.50)
    runs.add("nystrom,quick", 0.53, seed=1)
    runs.add("softmax,quick", 0.47, seed=1)
    return runs
