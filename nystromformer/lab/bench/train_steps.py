"""Whole train steps of a task's config, on made-up examples of its shapes."""

import importlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lra_tasks.task import Split, Task
from nystromformer.config import Config, ConfigError
from nystromformer.lab.bench.programs import Program, compile_program
from nystromformer.lab.bench.variants import Variant
from nystromformer.lab.run import Experiment
from nystromformer.training.data import Batch, Data, train_indices
from nystromformer.training.devices import make_mesh, one_device, put
from nystromformer.training.step import graphdef_of, make_init, make_train_chunk

STEPS = 4  # in one run
GROUPS = {"max_length": "task", "dtype": "model"}  # of a config; else "train"


def task_config(task: str, variant: Variant, changes: Mapping[str, Any]) -> Config:
    """The paper preset of configs/TASK.py with this attention.

    Args:
      task: the name of a file there.
      variant: its options replace those of the config.
      changes: of max_length, batch_size, dtype, micro_batches and length_buckets,
        where not None.

    Raises:
      ConfigError: a config that cannot run.
    """
    config = importlib.import_module(f"configs.{task}").get_config(variant.name)
    mapping = config.to_dict()
    for name, value in changes.items():
        if value is not None:
            mapping[GROUPS.get(name, "train")][name] = value
    mapping["attention"] = {"name": variant.name, **variant.options}
    return Config.from_mapping(mapping)


def made_up_examples(task: Task, batch_size: int) -> Data:
    """STEPS batches of random tokens, each row between half full and full."""
    rng = np.random.default_rng(0)
    examples = STEPS * batch_size
    rows = (examples * task.num_inputs, task.max_length)
    pairs = np.arange(rows[0], dtype=np.int32).reshape(examples, task.num_inputs)
    return Data.put(
        Split(
            inputs=rng.integers(1, task.vocab_size, rows).astype(np.uint16),
            lengths=rng.integers(rows[1] // 2, rows[1] + 1, rows[0]).astype(np.int32),
            labels=rng.integers(0, task.num_classes, examples).astype(np.int32),
            pairs=pairs if task.num_inputs == 2 else None,
        )
    )


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
    rows, pairs = drawn, None
    if split.pairs is not None:
        rows = split.pairs[drawn].ravel()
        pairs = np.arange(rows.size, dtype=np.int32).reshape(-1, 2)
    labels = split.labels[drawn]
    return Data.put(Split(split.inputs[rows], split.lengths[rows], labels, pairs))


def train_program(
    label: str, experiment: Experiment, data: Data, device: Any = None
) -> Program:
    """STEPS train steps in one compiled loop, as training takes them.

    Args:
      label: of the attention.
      experiment: of the task, with that attention.
      data: STEPS batches.
      device: one that may not be there, on which nothing runs; None = the first.
    """
    train = experiment.config.train
    optimizer = experiment.make_optimizer()
    indices = np.arange(STEPS * train.batch_size, dtype=np.int32)
    indices = jax.device_put(indices.reshape(STEPS, train.batch_size))
    mesh = one_device() if device is None else make_mesh(1, 1, devices=[device])
    init = make_init(experiment.make_model, optimizer, experiment.objective)
    train_chunk = make_train_chunk(
        graphdef_of(experiment.make_model),
        optimizer,
        experiment.objective,
        mesh=mesh,
        micro_batches=train.micro_batches,
        length_buckets=train.length_buckets,
    )
    rest = data, indices, np.int32(STEPS)
    shapes, seed = jax.eval_shape(init, np.uint32(0)), np.uint32(0)
    compiled, cost = compile_program(train_chunk, shapes, *rest, device=device)
    states = []  # the newest; a run takes it and leaves the next

    def run() -> None:
        state, finite = compiled(states.pop() if states else init(seed), *rest)
        states.append(jax.block_until_ready(state))
        if culprits := finite.culprits():
            raise ConfigError(f"{label}: not finite: {', '.join(culprits)}")

    options = experiment.config.attention.options
    key = {"what": "train step", "attention": label, "options": options}
    key |= _sizes(experiment)
    return Program(key, run, cost, steps=STEPS, compiled=compiled)


def input_program(experiment: Experiment, data: Data) -> Program:
    """What STEPS steps need before a model: which examples, and their batches."""
    batch_size = experiment.config.train.batch_size
    num_examples, mesh = len(data.labels), one_device()

    def take(data: Data, indices: jax.Array) -> Batch:
        ones = jnp.ones(batch_size)
        return jax.lax.map(lambda rows: data.take(rows, ones), indices)

    def indices() -> jax.Array:
        return put(mesh, train_indices(0, 0, STEPS, num_examples, batch_size))

    compiled, cost = compile_program(take, data, indices())
    key = {"what": "input", "attention": "input", "options": {}} | _sizes(experiment)
    return Program(
        key,
        lambda: jax.block_until_ready(compiled(data, indices())),
        cost,
        steps=STEPS,
    )


def _sizes(experiment: Experiment) -> dict[str, Any]:
    return {
        "task": experiment.config.task.name,
        "length": experiment.task.max_length,
        "batch_size": experiment.config.train.batch_size,
        "dtype": experiment.config.model.dtype,
    }
