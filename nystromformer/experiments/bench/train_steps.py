"""Whole train steps of a task's config, on random examples of its shapes."""

import importlib
import itertools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from lra_tasks.task import Task
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.bench.attentions import AttentionSpec
from nystromformer.experiments.bench.measure import Program, compile_program
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.data import Data

STEPS = 4  # in one run


def step_groups(
    specs: Sequence[AttentionSpec],
    tasks: Sequence[str],
    grad_accum_steps: Sequence[int],
    torch: Any = None,
    **changes: Any,
) -> Iterator[list[Program]]:
    """The programs of each task, all configs checked before the first is compiled.

    Tasks are modules in configs/, taken with their paper preset and `changes` by path,
    as in "train.batch_size"; None changes nothing. grad_accum_steps is the number of
    length buckets, too. torch: the module `torch_baselines`.
    """
    given = {path: value for path, value in changes.items() if value is not None}
    groups: dict[str, dict[str, Experiment]] = {task: {} for task in tasks}
    for task, spec, parts in itertools.product(groups, specs, grad_accum_steps):
        config = importlib.import_module(f"configs.{task}").get_config(spec.name)
        batching = {"train.grad_accum_steps": parts, "train.length_buckets": parts}
        config.update_from_flattened_dict(given | batching)
        options = {"name": spec.name, **spec.options}
        mapping = {**config.to_dict(), "attention": options}
        label = f"{spec.label} in {parts}" if parts > 1 else spec.label
        groups[task][label] = Experiment(Config.from_mapping(mapping))
    for found in groups.values():
        first, programs = next(iter(found.values())), []
        data = synthetic_examples(first.task, first.config.train.batch_size)
        for label, experiment in found.items():
            ours = train_program(label, experiment, data)
            theirs = torch and torch.train_baseline(ours, experiment.config, data)
            programs += filter(None, (ours, theirs))
        yield programs


def synthetic_examples(task: Task, batch_size: int) -> Data:
    """STEPS batches of random tokens: full pictures, texts from half full to full."""
    rng, length = np.random.default_rng(0), task.max_length
    examples, least = STEPS * batch_size, length // 2 if task.padded else length
    rows = np.arange(examples * task.num_inputs, dtype=np.int32)
    split = SimpleNamespace(
        inputs=rng.integers(1, task.vocab_size, (len(rows), length)).astype(np.uint16),
        lengths=rng.integers(least, length + 1, len(rows)).astype(np.int32),
        labels=rng.integers(0, task.num_classes, examples).astype(np.int32),
        pairs=rows.reshape(-1, 2) if task.num_inputs == 2 else None,
    )
    return Data.of(split).put()


def train_program(label: str, experiment: Experiment, data: Data) -> Program:
    """STEPS train steps on STEPS batches in one compiled loop, as training takes them.

    `label` names the attention; data has STEPS batches.
    """
    config, programs, seed = experiment.config, experiment.make_programs(), np.uint32(0)
    batches = np.arange(len(data.labels), dtype=np.int32).reshape(STEPS, -1)
    rest = data, jax.device_put(batches), np.int32(STEPS)
    state = programs.init.eval_shape(seed)
    compiled, size = compile_program(programs.train_chunk, state, *rest)
    states: list[Any] = []  # the newest; a run donates it and leaves the next

    def run() -> None:
        state, finite = compiled(states.pop() if states else programs.init(seed), *rest)
        states.append(jax.block_until_ready(state))
        if culprits := finite.culprits():
            raise ConfigError(f"{label}: not finite: {', '.join(culprits)}")

    key = {"what": "train step", "attention": label, "task": config.task.name}
    key |= {"options": config.attention.options, "length": experiment.task.max_length}
    key |= {"batch_size": config.train.batch_size, "dtype": config.model.dtype}
    return Program(key, run, size, STEPS)
