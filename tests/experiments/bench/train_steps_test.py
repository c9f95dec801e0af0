"""A step of a task's config trains; its sizes are the config's."""

import jax
import numpy as np
import pytest

from lra_tasks.task import get_task
from nystromformer.config import ConfigError
from nystromformer.experiments.bench.train_steps import (
    STEPS,
    made_up_examples,
    prepared_examples,
    task_config,
    train_program,
)
from nystromformer.experiments.bench.variants import parse_variants
from nystromformer.experiments.run import Experiment


def experiment(task="text", name="linear", **changes):
    [variant] = parse_variants([name], [])
    return Experiment.from_config(task_config(task, variant, changes))


def test_the_config_is_the_papers_with_the_changes():
    whole, small = experiment(), experiment(max_length=128, batch_size=3)
    assert (whole.task.max_length, whole.config.train.batch_size) == (4000, 32)
    assert (small.task.max_length, small.config.train.batch_size) == (128, 3)
    sized = experiment("image", "nystrom-32").config
    assert sized.attention.options["num_landmarks"] == 32
    assert sized.train.batch_size == 256
    with pytest.raises(ConfigError, match="batch_size"):
        experiment(batch_size=0)


def test_examples_have_the_shapes_of_the_task():
    task = experiment("retrieval", max_length=40).task
    data = made_up_examples(task, 3)
    assert data.inputs.shape == (STEPS * 6, 40)
    assert data.pairs.shape == (STEPS * 3, 2)
    assert 0 < data.inputs.min() <= data.inputs.max() < task.vocab_size
    assert 20 <= data.lengths.min() <= data.lengths.max() <= 40
    pictures = made_up_examples(experiment("image").task, 3)
    assert pictures.pairs is pictures.lengths is None  # and so without a mask


def test_prepared_examples_are_the_tasks_own(tmp_path):
    options = {"max_length": 40, "num_train": 20, "num_validation": 2, "num_test": 2}
    short = {
        "min_tokens": 5,
        "max_tokens": 40,
        "max_depth": 3,
        "max_args": 4,
        "seed": 0,
    }
    task = get_task("listops", **options, **short)
    data = prepared_examples(task, 3, str(tmp_path))
    split = task.load("train", str(tmp_path))
    known = {row.tobytes(): i for i, row in enumerate(split.inputs)}
    found = [known[row.tobytes()] for row in np.asarray(data.inputs)]
    assert len(set(found)) == STEPS * 3
    np.testing.assert_array_equal(data.lengths, split.lengths[found])
    np.testing.assert_array_equal(data.labels, split.labels[found])
    with pytest.raises(ConfigError, match="4 steps of 6 are more than the 20 examples"):
        prepared_examples(task, 6, str(tmp_path))


def test_a_run_takes_all_its_steps_and_goes_on_where_it_was(monkeypatch):
    of = experiment(max_length=16, batch_size=2)
    program = train_program("linear", of, made_up_examples(of.task, 2))
    states = []
    real = jax.block_until_ready
    monkeypatch.setattr(
        jax, "block_until_ready", lambda s: states.append(int(s.step)) or real(s)
    )
    program.run()
    program.run()
    assert states == [STEPS, 2 * STEPS]
    assert program.steps == STEPS
    key = program.key
    assert (key["what"], key["task"], key["length"]) == ("train step", "text", 16)
