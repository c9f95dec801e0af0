"""An objective of a user's own: one file, and everything else takes it."""

import json
import signal
import time

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.objectives import (
    OBJECTIVES,
    Learning,
    find_objective,
    register_objective,
)

COUNT = '''
import jax.numpy as jnp
from flax import nnx

from configs import listops
from nystromformer.encoder import Encoder
from nystromformer.lab.objectives import Learning, register_objective


class Counter(nnx.Module):
    def __init__(self, config, task, pooling, rngs):
        self.encoder = Encoder(config, rngs=rngs)
        self.out = nnx.Linear(config.model_dim, 1, rngs=rngs)


class Count:
    """The number of valid tokens, in tens."""

    metrics, select, higher_is_better = ("loss", "error"), "error", False

    def __call__(self, model, batch, key):
        x, mask = model.encoder(batch.inputs, batch.mask, key)
        found = jnp.where(mask[..., None], model.out(x), 0).sum((1, 2))
        wrong = (found - mask.sum(1) / 10) * batch.weights
        total = batch.weights.sum()
        return {"loss": ((wrong**2).sum(), total), "error": (abs(wrong).sum(), total)}


register_objective("count", Learning(lambda task: Count(), Counter))


def get_config(arg):
    config = listops.get_config(arg)
    config.objective.name = "count"
    return config
'''


def test_a_toy_objective_trains_logs_selects_resumes_and_reports(commands, tmp_path):
    assert len(COUNT.strip().splitlines()) <= 40
    (tmp_path / "count.py").write_text(COUNT)
    args = list(commands.train_args(tmp_path / "run", "--config.train.num_steps=80"))
    args[0] = f"--config={tmp_path}/count.py:none,quick"
    args = [arg for arg in args if "num_landmarks" not in arg]
    stopped = commands.start("train.py", *args)
    while not list((tmp_path / "run").glob("checkpoints/*")):
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(timeout=60) == 143
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert "going on from step" in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    errors = {r["step"]: r["error"] for r in rows if r["split"] == "validation"}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metric"] == "error"
    assert result["validation_error"] == min(errors.values())
    assert errors[result["best_step"]] == min(errors.values())
    assert errors[80] < errors[40]
    report = commands.run("report.py", str(tmp_path / "run"), f"--out={tmp_path}/out")
    assert report.returncode == 0, report.stderr
    assert f"{result['test_error']:.2f}" in (tmp_path / "out" / "report.md").read_text()


def test_a_name_is_taken_once_and_an_unknown_one_lists_the_known():
    learning = Learning(lambda task: None, lambda *args: None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the name 'classification' is taken"):
        register_objective("classification", learning)
    register_objective("classification", OBJECTIVES["classification"])
    with pytest.raises(ConfigError, match=r"unknown .*'clasify'; known: classif"):
        find_objective("clasify")
