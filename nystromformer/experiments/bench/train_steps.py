"""Whole train steps of a task's config, on random examples of its shapes."""

import importlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lra_tasks.task import Split, Task
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.bench.programs import Program, compile_program
from nystromformer.experiments.bench.variants import Variant
from nystromformer.experiments.run import Experiment
from nystromformer.training.data import Data
from nystromformer.training.devices import one_device
from nystromformer.training.step import graphdef_of, make_init, make_train_chunk

STEPS = 4  # in one run
GROUPS = {"max_length": "task", "dtype": "model"}  # of a config; else "train"


def task_config(task: str, variant: Variant, changes: Mapping[str, Any]) -> Config:
    """The paper preset of configs/TASK.py with this attention, and changes.

    Changes of max_length, batch_size, dtype, grad_accum_steps and length_buckets that
    are not None. ConfigError where it cannot run.
    """
    config = importlib.import_module(f"configs.{task}").get_config(variant.name)
    mapping = config.to_dict()
    for name, value in changes.items():
        if value is not None:
            mapping[GROUPS.get(name, "train")][name] = value
    mapping["attention"] = {"name": variant.name, **variant.options}
    return Config.from_mapping(mapping)


def made_up_examples(task: Task, batch_size: int) -> Data:
    """STEPS batches of random tokens: full pictures, texts from half full to full."""
    rng, length = np.random.default_rng(0), task.max_length
    as_text = isinstance(task.decode(np.ones(length, np.uint8)), str)
    least, examples = length // 2 if as_text else length, STEPS * batch_size
    rows = examples * task.num_inputs
    inputs = rng.integers(1, task.vocab_size, (rows, length)).astype(np.uint16)
    lengths = rng.integers(least, length + 1, rows).astype(np.int32)
    return _put(inputs, lengths, rng.integers(0, task.num_classes, examples))


def prepared_examples(task: Task, batch_size: int, data_dir: str) -> Data:
    """STEPS batches drawn from the task's own training examples.

    They are prepared there first where they are not; ConfigError where they are few.
    """
    split = task.load("train", data_dir)
    if split.num_examples < STEPS * batch_size:
        raise ConfigError(
            f"{STEPS} steps of {batch_size} are more than the {split.num_examples:,} "
            "examples: take a smaller --batch_size"
        )
    drawn = np.random.default_rng(0).permutation(split.num_examples)
    drawn = drawn[: STEPS * batch_size]
    rows = drawn if split.pairs is None else split.pairs[drawn].ravel()
    return _put(split.inputs[rows], split.lengths[rows], split.labels[drawn])


def _put(inputs: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> Data:
    """Puts examples on the device; with two rows for each they are pairs."""
    pairs = np.arange(len(inputs), dtype=np.int32).reshape(len(labels), -1)
    pairs = None if len(inputs) == len(labels) else pairs
    return Data.put(Split(inputs, lengths, labels.astype(np.int32), pairs))


def train_program(
    label: str,
    experiment: Experiment,
    data: Data,
    examples: str = "made up",
) -> Program:
    """STEPS train steps on STEPS batches in one compiled loop, as training takes them.

    The label is of the attention.
    """
    train, optimizer = experiment.config.train, experiment.make_optimizer()
    indices = np.arange(STEPS * train.batch_size, dtype=np.int32)
    indices = jax.device_put(indices.reshape(STEPS, train.batch_size))
    objective, make_model = experiment.objective, experiment.make_model
    init, seed = make_init(make_model, optimizer, objective), np.uint32(0)
    train_chunk = make_train_chunk(
        *(graphdef_of(make_model), optimizer, objective),
        mesh=one_device(),
        grad_accum_steps=train.grad_accum_steps,
        length_buckets=train.length_buckets,
    )
    shapes, rest = jax.eval_shape(init, seed), (data, indices, np.int32(STEPS))
    compiled, cost = compile_program(train_chunk, shapes, *rest)
    states = []  # the newest; a run takes it and leaves the next

    def run() -> None:
        state, finite = compiled(states.pop() if states else init(seed), *rest)
        states.append(jax.block_until_ready(state))
        if culprits := finite.culprits():
            raise ConfigError(f"{label}: not finite: {', '.join(culprits)}")

    key = _key(label, experiment, examples)
    return Program(
        *(key, run, cost, STEPS),
        peer=lambda peers: peers.train_peer(key, experiment.config, data),
    )


def _key(label: str, of: Experiment, examples: str) -> dict[str, Any]:
    config = of.config
    return {
        "what": "train step",
        "attention": label,
        "options": config.attention.options,
        "task": config.task.name,
        "length": of.task.max_length,
        "batch_size": config.train.batch_size,
        "dtype": config.model.dtype,
        "examples": examples,
    }
