"""A step of a task's config trains; its sizes are the config's."""

import jax

from nystromformer.experiments.bench.attentions import parse_attention
from nystromformer.experiments.bench.train_steps import (
    STEPS,
    step_groups,
    synthetic_examples,
)
from nystromformer.experiments.experiment import Experiment
from tests.small import make_config


def test_step_groups_take_all_steps_and_continue(monkeypatch):
    sizes = {"task.max_length": 16, "train.batch_size": 2, "model.dtype": None}
    specs = [parse_attention(label) for label in ("linear", "nystrom-4")]
    [programs] = step_groups(specs, ["text"], (1, 2), **sizes)
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


def test_synthetic_examples_have_the_shapes_of_the_task():
    task = Experiment(make_config("linear", "retrieval")).task
    data = synthetic_examples(task, 3)
    assert data.inputs.shape == (STEPS * 6, task.max_length)
    assert data.pairs.shape == (STEPS * 3, 2)
    assert 0 < data.inputs.min() <= data.inputs.max() < task.vocab_size
    assert task.max_length / 2 <= data.lengths.min() < data.lengths.max()
    task = Experiment(make_config("linear", "image")).task
    pictures = synthetic_examples(task, 3)
    assert pictures.pairs is pictures.lengths is None  # and so without a mask
