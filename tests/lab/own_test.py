"""A user's own attention and task, in files of their own, through the commands."""

import json

# Beside the config that imports it; the README says the same in words.
MINE = '''
import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from lra_tasks.task import Split, Task, register_task
from nystromformer import register_attention
from nystromformer.attention.base import Attention


class Average(Attention):
    """Every token gets the mean of the valid values, times a number."""

    defaults = {"scale": 1.0}
    num_projections = 1

    def __init__(self, *, scale: float = 1.0, **sizes):
        super().__init__(**sizes)
        self.scale = scale

    def attend(self, query, key, value, mask, precision):
        if mask is None:
            mask = jnp.ones(value.shape[:2], bool)
        valid = mask[:, :, None, None]
        mean = jnp.where(valid, value, 0).sum(1, keepdims=True) / valid.sum(
            1, keepdims=True
        )
        return jnp.broadcast_to(self.scale * mean, value.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parity(Task):
    """Is the number of ones odd?"""

    name: ClassVar[str] = "parity"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 3
    num_classes: ClassVar[int] = 2
    max_length: int = 9

    def make_splits(self, data_dir):
        rng, splits = np.random.default_rng(0), {}
        for name in ("train", "validation", "test"):
            inputs = rng.integers(1, 3, (64, self.max_length)).astype(np.uint8)
            lengths = np.full(64, self.max_length, np.int32)
            labels = ((inputs == 2).sum(1) % 2).astype(np.int32)
            splits[name] = Split(inputs, lengths, labels)
        return splits

    def decode(self, tokens):
        return " ".join(str(token - 1) for token in tokens)


register_attention("average", Average)
register_task("parity", Parity)
'''

CONFIG = """
import mine
from configs.defaults import make_config


def get_config(arg=None):
    return make_config(
        arg or "average",
        task={"name": "parity", "max_length": 9},
        optimizer={"warmup_steps": 2},
        train={
            "batch_size": 16,
            "num_steps": 20,
            "eval_every": 10,
            "checkpoint_every": 10,
        },
        presets={},
    )
"""


def test_a_config_brings_its_own_attention_and_task(commands, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "own.py").write_text(CONFIG)
    args = (f"--config={tmp_path}/own.py", f"--workdir={tmp_path}/run")
    done = commands.run("train.py", *args, "--config.attention.scale=2.0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("parity with average: ")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["task"], result["attention"]) == ("parity", "average")
    assert result["test_examples"] == 64
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["attention"] == {"name": "average", "scale": 2.0}
    again = commands.run("evaluate.py", *args)
    assert f"accuracy {result['test_accuracy']:.2%}" in again.stdout, again.stderr
    unknown = commands.run("evaluate.py", args[1])
    assert "unknown attention 'average'" in unknown.stderr
