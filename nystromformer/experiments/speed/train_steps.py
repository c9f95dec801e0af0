"""The benchmark's programs of whole train steps, with the presets of the tasks."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lra_tasks.split import NO_LABEL, Split
from lra_tasks.task import Task
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import Experiment, build_experiment
from nystromformer.experiments.speed.attentions import AttentionSpec, name_row
from nystromformer.experiments.speed.rows import RowKey
from nystromformer.experiments.speed.timing import (
    Program,
    compile_program,
    wait_on_cpu,
)
from nystromformer.training.data import Chunk, DeviceRows, HostSplit
from nystromformer.training.step import Finite, State

CONFIGS = Path(__file__).parents[3] / "configs"
STEPS = 4  # in one run

# Makes another library's program to stand beside one of ours with the same config and
# data; None where the library has no such program.
MakeStepBaseline = Callable[[Program, Config, DeviceRows], Program | None]


def step_groups(
    specs: Sequence[AttentionSpec],
    tasks: Sequence[str],
    part_counts: Sequence[int],
    baselines: Sequence[MakeStepBaseline] = (),
    changes: Mapping[str, Any] | None = None,
) -> Iterator[list[Program]]:
    """Yields the programs of each task; all configs are checked before the first.

    Args:
      specs: the attentions.
      tasks: names of config files, of which the paper preset is taken.
      part_counts: into how many parts a batch is divided. Each number is measured, with
        as many length buckets as parts.
      baselines: functions that make programs of other libraries.
      changes: values by flat keys, as in "train.batch_size"; None changes nothing.
    """
    groups: dict[str, dict[str, Experiment]] = {task: {} for task in tasks}
    for task, spec, num_parts in itertools.product(groups, specs, part_counts):
        experiment = make_experiment(task, spec, num_parts, changes or {})
        label = name_row(spec.label, experiment.config.attention.options)
        if num_parts > 1:
            label += f" in {num_parts}"
        groups[task][label] = experiment

    for experiments in groups.values():
        first = next(iter(experiments.values()))
        data = synthetic_examples(first.task, first.config.train.batch_size)
        programs = []
        for label, experiment in experiments.items():
            program = train_program(label, experiment, data)
            programs.append(program)
            for make_baseline in baselines:
                baseline = make_baseline(program, experiment.config, data)
                if baseline is not None:
                    programs.append(baseline)
        yield programs


def make_experiment(
    task: str, spec: AttentionSpec, num_parts: int, changes: Mapping[str, Any]
) -> Experiment:
    """Makes the paper preset of a task, with an attention and changes.

    Args:
      task: the name of a config file.
      spec: the attention; options that it does not change are those of the preset.
      num_parts: the number of parts of a batch, and of length buckets.
      changes: values by flat keys; None leaves that of the preset.
    """
    values: dict[str, Any] = {
        f"attention.{option}": value for option, value in spec.changes.items()
    }
    for key, value in changes.items():
        if value is not None:
            values[key] = value
    values["train.grad_accum_steps"] = num_parts
    values["train.length_buckets"] = num_parts
    return build_experiment(load_config(f"{CONFIGS}/{task}.py:{spec.name}", values))


def synthetic_examples(task: Task, batch_size: int) -> DeviceRows:
    """Returns STEPS batches of random tokens and labels.

    Pictures have all their tokens; the lengths of texts are drawn from a half of
    max_length to the whole. Where tokens have labels, the last ones have them.
    """
    rng = np.random.default_rng(0)
    max_length = task.max_length
    min_length = max_length // 2 if task.padded else max_length
    num_examples = STEPS * batch_size
    num_rows = num_examples * task.num_inputs
    rows = np.arange(num_rows, dtype=np.int32)
    inputs = rng.integers(1, task.vocab_size, (num_rows, max_length))
    lengths = rng.integers(min_length, max_length + 1, num_rows)
    if task.num_labels:
        labels = np.full((num_examples, max_length), NO_LABEL)
        labels[:, -task.num_labels :] = rng.integers(
            0, task.num_classes, (num_examples, task.num_labels)
        )
    else:
        labels = rng.integers(0, task.num_classes, num_examples)
    split = Split(
        inputs=inputs.astype(np.uint16),
        lengths=lengths.astype(np.int32),
        labels=labels.astype(np.int32),
        pairs=rows.reshape(-1, 2) if task.num_inputs == 2 else None,
    )
    return HostSplit.from_split(split).put()


def make_chunk(data: DeviceRows) -> Chunk:
    """Returns STEPS batches of all examples, in their order."""
    batches = np.arange(len(data.labels), dtype=np.int32).reshape(STEPS, -1)
    return Chunk(data, jax.device_put(batches), STEPS)


def step_key(label: str, experiment: Experiment) -> RowKey:
    """Returns what the row of a train step is, for the JSON of the benchmark.

    Args:
      label: the name of the attention's row.
      experiment: what is trained.
    """
    config = experiment.config
    return RowKey(
        what="train step",
        attention=label,
        task=config.task.name,
        options=config.attention.options,
        length=experiment.task.max_length,
        batch_size=config.train.batch_size,
        dtype=config.model.dtype,
    )


def train_program(label: str, experiment: Experiment, data: DeviceRows) -> Program:
    """Returns STEPS train steps in one compiled loop, as training takes them.

    Args:
      label: the name of the attention's row.
      experiment: what is trained.
      data: STEPS batches.
    """
    training = experiment.make_programs()
    seed = np.uint32(0)
    chunk = make_chunk(data)
    state_shapes = training.init.eval_shape(seed)
    compiled = compile_program(training.train_chunk, state_shapes, chunk)
    # The result of the last run; empty before the first. A run takes it out, since the
    # compiled steps reuse the memory of the state, and puts the new one in.
    last_result: list[tuple[State, Finite]] = []

    def run() -> tuple[State, Finite]:
        state = last_result.pop()[0] if last_result else training.init(seed)
        result = compiled.call(state, chunk)
        last_result.append(result)
        wait_on_cpu(result)
        return result

    def check() -> None:
        # A NaN stays in the weights and ends every later run after its first step, so
        # that it would seem fast.
        [(_, finite)] = last_result
        culprits = jax.device_get(finite).name_culprits()
        if culprits:
            raise ConfigError(
                f"{label}: not finite: {culprits}; leave it out, or take another "
                "--dtype"
            )

    return Program(
        key=step_key(label, experiment),
        run=run,
        check=check,
        peak_bytes=compiled.peak_bytes,
        path=compiled.path,
        steps=STEPS,
    )
