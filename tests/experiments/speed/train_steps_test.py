"""Train steps of a task's config, on random examples."""

import jax
import numpy as np
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.speed.attentions import parse_attention
from nystromformer.experiments.speed.timing import measure
from nystromformer.experiments.speed.train_steps import (
    STEPS,
    make_experiment,
    step_groups,
    synthetic_examples,
    train_program,
)
from tests.small import make_config

CHANGES = {
    "task.max_length": 16,
    "train.batch_size": 2,
    "model.dtype": "bfloat16",
    "model.num_layers": 1,
    # None is the value of the preset.
    "model.mlp_dim": None,
}


@pytest.mark.slow
def test_step_groups_take_all_steps_and_continue(monkeypatch):
    specs = [parse_attention(label) for label in ("linear", "linformer-4")]
    [programs] = step_groups(specs, ["text"], (1, 2), changes=CHANGES)
    labels = [program.key.attention for program in programs]
    assert labels == ["linear", "linear in 2", "linformer-4", "linformer-4 in 2"]

    fetched = []
    device_get = jax.device_get

    def record_fetch(tree):
        fetched.append(tree)
        return device_get(tree)

    monkeypatch.setattr(jax, "device_get", record_fetch)
    state, _ = programs[1].run()
    assert int(state.step) == STEPS
    state, finite = programs[1].run()
    assert int(state.step) == 2 * STEPS
    assert programs[1].steps == STEPS
    # Fetching from a GPU takes its time. Only the check does it, of the last run.
    assert fetched == []
    programs[1].check()
    [fetched_tree] = fetched
    assert fetched_tree is finite

    key = programs[2].key
    assert key.what == "train step"
    assert key.task == "text"
    assert key.length == 16
    assert key.batch_size == 2
    assert key.dtype == "bfloat16"
    assert key.options["projection_dim"] == 4


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_no_benchmark():
    changes = {**CHANGES, "optimizer.learning_rate": 1e30, "optimizer.warmup_steps": 0}
    specs = [parse_attention("linear")]
    [[program]] = step_groups(specs, ["text"], [1], changes=changes)
    with pytest.raises(ConfigError, match=r"^linear: not finite: the loss, "):
        measure([program], rounds=1)


@pytest.mark.parametrize(("backend", "num_waits"), [("cpu", 2), ("gpu", 0)])
def test_train_program_waits_for_each_run_on_a_cpu_alone(
    monkeypatch, backend, num_waits
):
    """On a GPU the runs of a sample are waited for together, as those of others are."""
    experiment = Experiment(make_config("linear", "image", model__num_layers=1))
    data = synthetic_examples(experiment.task, 2)
    program = train_program("linear", experiment, data)
    waits = []
    monkeypatch.setattr(jax, "block_until_ready", waits.append)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    program.run()
    program.run()
    assert len(waits) == num_waits


def test_step_groups_check_all_configs_before_the_first_is_compiled():
    specs = [parse_attention("linear")]
    groups = step_groups(specs, ["text", "image"], [3])
    with pytest.raises(ConfigError, match=r"grad_accum_steps \d+ does not divide"):
        next(groups)


def test_synthetic_examples_of_pairs_have_the_shapes_of_the_task():
    task = Experiment(make_config("linear", "retrieval")).task
    data = synthetic_examples(task, 3)
    assert data.inputs.shape == (STEPS * 6, task.max_length)
    assert data.pairs.shape == (STEPS * 3, 2)
    assert 0 < data.inputs.min() <= data.inputs.max() < task.vocab_size
    assert task.max_length / 2 <= data.lengths.min() < data.lengths.max()


def test_make_experiment_keeps_the_options_of_the_preset_unless_named():
    """configs/recall.py has no convolution, where other configs have one of 35."""
    spec = parse_attention("nystrom-16,num_pinv_iters=4")
    options = make_experiment("recall", spec, 1, {}).config.attention.options
    assert options["conv_kernel_size"] == 0
    assert options["num_landmarks"] == 16
    assert options["num_pinv_iters"] == 4


def test_synthetic_examples_have_labels_of_tokens_where_the_task_has():
    config = make_config(
        "linear",
        "recall",
        model__num_layers=1,
        task__max_length=16,
        task__num_pairs=4,
        task__num_queries=4,
    )
    experiment = Experiment(config)
    data = synthetic_examples(experiment.task, 3)
    assert data.labels.shape == (STEPS * 3, 16)
    assert ((np.asarray(data.labels) >= 0).sum(1) == 4).all()
    program = train_program("linear", experiment, data)
    assert program.key.task == "recall"


def test_synthetic_examples_of_pictures_need_no_mask():
    pictures = synthetic_examples(Experiment(make_config("linear", "image")).task, 3)
    assert pictures.pairs is None
    assert pictures.lengths is None
