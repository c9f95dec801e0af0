"""A user's own attention, task and objective, in files of their own."""

import json
import signal
import time

from tests.archive_server import write
from tests.text_test import PER_CLASS, REVIEWS

# The attention and the task of examples/own.py, and an objective.
COUNT = f"""
import jax.numpy as jnp
from flax import nnx

from examples import own
from nystromformer import Encoder
from nystromformer.experiments.objectives import Learning, register_objective

own.Words.reviews_per_class = {PER_CLASS}


class Counter(nnx.Module):
    def __init__(self, config, task, pooling, rngs):
        self.encoder = Encoder(config, rngs=rngs)
        self.out = nnx.Linear(config.model_dim, 1, rngs=rngs)


class Count:  # the number of valid tokens, in tens
    metrics, select, higher_is_better = ("loss", "error"), "error", False

    def __call__(self, model, batch, key):
        x, mask = model.encoder(batch.inputs, batch.mask, key)
        found = jnp.where(mask[..., None], model.out(x), 0).sum((1, 2))
        wrong = (found - mask.sum(1) / 10) * batch.weights
        total = batch.weights.sum()
        return {{"loss": ((wrong**2).sum(), total), "error": (abs(wrong).sum(), total)}}


register_objective("count", Learning(lambda task: Count(), Counter))


def get_config(arg=None):
    config = own.get_config(arg)
    config.objective.name = "count"
    config.task.max_length = 12
    config.optimizer.warmup_steps = 2
    config.train.update(batch_size=16, num_steps=400, eval_every=40)
    config.train.checkpoint_every = 10
    return config
"""


def test_a_config_brings_its_own_attention_task_and_objective(commands, tmp_path):
    write(tmp_path, REVIEWS)
    (tmp_path / "count.py").write_text(COUNT)
    workdir = f"--workdir={tmp_path}/run"
    args = (f"--config={tmp_path}/count.py", workdir)
    args += ("--config.attention.scale=2.0", f"--config.task.source_dir={tmp_path}")
    stopped = commands.start("train.py", *args)
    while not list((tmp_path / "run").glob("checkpoints/*")):
        assert stopped.poll() is None, stopped.communicate()
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("words with average: ")
    assert "resuming from step" in done.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["attention"] == {"name": "average", "scale": 2.0}

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    errors = {r["step"]: r["error"] for r in rows if r["split"] == "validation"}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["task"], result["metric"]) == ("words", "error")
    assert result["validation_error"] == errors[result["best_step"]]
    assert errors[400] < errors[40]
    assert min(errors.values()) == result["validation_error"]

    again = commands.run("evaluate.py", args[0], workdir)
    assert f"error {result['test_error']:.4f}" in again.stdout, again.stderr
    unknown = commands.run("evaluate.py", workdir)
    assert "unknown attention 'average'" in unknown.stderr
    report = commands.run("report.py", str(tmp_path / "run"), f"--out={tmp_path}/out")
    assert report.returncode == 0, report.stderr
    assert f"{result['test_error']:.2f}" in (tmp_path / "out" / "report.md").read_text()
