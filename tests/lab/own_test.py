"""A user's own attention, task and objective, in a file of their own."""

import json
import signal
import time

# Beside the config that imports it; the README says the same in words.
MINE = '''
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_tasks.task import Split, Task, register_task
from nystromformer import Encoder, register_attention
from nystromformer.attention.base import Attention
from nystromformer.lab.objectives import Learning, register_objective


class Average(Attention):
    """Every token gets the mean of the valid values, times a number."""

    defaults = {"scale": 1.0}
    num_projections = 1

    def __init__(self, *, scale: float = 1.0, **sizes):
        super().__init__(**sizes)
        self.scale = scale

    def attend(self, query, key, value, mask, precision):
        valid = jnp.ones(len(key), bool) if mask is None else mask
        mean = jnp.where(valid[:, None], value, 0).sum(0) / valid.sum()
        return jnp.broadcast_to(self.scale * mean, query.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ones(Task):
    """Is the number of ones odd?"""

    name: ClassVar[str] = "ones"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 3
    num_classes: ClassVar[int] = 2
    max_length: int = 9

    def make_splits(self, data_dir):
        rng, splits = np.random.default_rng(0), {}
        for name in ("train", "validation", "test"):
            lengths = rng.integers(1, self.max_length + 1, 64).astype(np.int32)
            inputs = rng.integers(1, 3, (64, self.max_length)).astype(np.uint8)
            inputs[np.arange(self.max_length) >= lengths[:, None]] = 0
            labels = ((inputs == 2).sum(1) % 2).astype(np.int32)
            splits[name] = Split(inputs, lengths, labels)
        return splits

    def decode(self, tokens):
        return " ".join(str(token - 1) for token in tokens)


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


register_attention("average", Average)
register_task("ones", Ones)
register_objective("count", Learning(lambda task: Count(), Counter))
'''

CONFIG = """
import mine
from configs.defaults import make_config


def get_config(arg=None):
    train = {"batch_size": 16, "num_steps": 400, "eval_every": 40}
    return make_config(
        arg or "average",
        task={"name": "ones", "max_length": 9},
        optimizer={"warmup_steps": 2},
        train={**train, "checkpoint_every": 10},
        presets={"count": {"objective": {"name": "count"}}},
    )
"""


def test_a_config_brings_its_own_attention_task_and_objective(commands, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "own.py").write_text(CONFIG)
    workdir = f"--workdir={tmp_path}/run"
    args = (f"--config={tmp_path}/own.py:average,count", workdir)
    args += ("--config.attention.scale=2.0",)
    stopped = commands.start("train.py", *args)
    while not list((tmp_path / "run").glob("checkpoints/*")):
        assert stopped.poll() is None, stopped.communicate()
        time.sleep(0.01)
    stopped.send_signal(signal.SIGTERM)
    stopped.communicate(timeout=60)
    assert stopped.returncode == 128 + signal.SIGTERM
    done = commands.run("train.py", *args)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ones with average: ")
    assert "going on from step" in done.stdout
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["attention"] == {"name": "average", "scale": 2.0}

    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    errors = {r["step"]: r["error"] for r in rows if r["split"] == "validation"}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["task"], result["metric"]) == ("ones", "error")
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
