"""A step of a task's config trains; its sizes are the config's."""

import jax
import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.bench.attentions import parse_attention
from nystromformer.experiments.bench.train_steps import (
    STEPS,
    step_groups,
    synthetic_examples,
)
from nystromformer.experiments.experiment import Experiment
from tests.small import make_config


def groups(tasks, *labels, parts=(1,), **changes):
    specs = [parse_attention(label) for label in labels]
    changes = {name.replace("__", "."): x for name, x in changes.items()}
    return step_groups(specs, tasks, parts, **changes)


def test_step_groups_take_all_steps_and_continue(monkeypatch):
    sizes = {"task__max_length": 16, "train__batch_size": 2, "model__dtype": None}
    [programs] = groups(["text"], "linear", "nystrom-4", parts=(1, 2), **sizes)
    labels = [program.key["attention"] for program in programs]
    assert labels == ["linear", "linear in 2", "nystrom-4", "nystrom-4 in 2"]
    states, real = [], jax.block_until_ready
    monkeypatch.setattr(
        jax, "block_until_ready", lambda s: states.append(int(s.step)) or real(s)
    )
    programs[1].run()
    programs[1].run()
    assert states == [STEPS, 2 * STEPS]
    assert programs[1].steps == STEPS
    key = programs[2].key
    assert (key["what"], key["task"], key["length"]) == ("train step", "text", 16)
    assert key["options"]["num_landmarks"] == 4
    assert (key["batch_size"], key["dtype"]) == (2, "float32")


def test_step_groups_check_all_configs_before_they_compile():
    for changes in ({"train__batch_size": 0}, {"train__batch_size": 3, "parts": (2,)}):
        with pytest.raises(ConfigError, match=r"batch_size|grad_accum_steps"):
            next(groups(["image", "text"], "linear", **changes))


def test_synthetic_examples_have_the_shapes_of_the_task():
    task = Experiment.from_config(make_config("linear", "retrieval")).task
    data = synthetic_examples(task, 3)
    assert data.inputs.shape == (STEPS * 6, task.max_length)
    assert data.pairs.shape == (STEPS * 3, 2)
    assert 0 < data.inputs.min() <= data.inputs.max() < task.vocab_size
    assert task.max_length / 2 <= data.lengths.min() < data.lengths.max()
    task = Experiment.from_config(make_config("linear", "image")).task
    pictures = synthetic_examples(task, 3)
    assert pictures.pairs is pictures.lengths is None  # and so without a mask
