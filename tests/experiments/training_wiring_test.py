"""Each option of an objective, an optimizer and a task reaches the object it is for.

What an Experiment makes is compared with what one would make by hand. The table of the
optimizer has a row for every key, so that a new option needs one.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from lra_tasks.task import get_task
from nystromformer.config import OptimizerConfig, key_types
from nystromformer.experiments.augmentations import flip, shuffle_arguments
from nystromformer.experiments.experiment import Experiment
from nystromformer.training.data import HostSplit
from nystromformer.training.masked import (
    ClassificationDenoising,
    MaskedOrder,
    MaskedTokens,
)
from nystromformer.training.objective import Classification, Positions
from nystromformer.training.optimizer import make_optimizer
from tests.jaxpr import equations
from tests.small import make_config, prefixed
from tests.tolerance import TOLERANCE, relative_error
from tests.training.conftest import make_split

# A task, the options of its objective, and the objective that they make.
OBJECTIVES = [
    ("listops", {}, Classification()),
    ("listops", {"f1": True}, Classification(f1=True)),
    ("listops", {"select": "f1"}, Classification(select="f1")),
    ("recall", {"name": "positions"}, Positions(num_labels=64)),
    (
        "listops",
        {
            "name": "classification_denoising",
            "denoising_weight": 0.5,
            "mlm_probability": 0.2,
            "corruption": "mask_only",
        },
        ClassificationDenoising(
            vocab_size=16,
            mask_token=16,
            denoising_weight=0.5,
            mlm_probability=0.2,
            corruption="mask_only",
        ),
    ),
    ("listops", {"name": "mlm"}, MaskedTokens(vocab_size=16, mask_token=16)),
    (
        "listops",
        {"name": "mlm", "mlm_probability": 0.3},
        MaskedTokens(vocab_size=16, mask_token=16, mlm_probability=0.3),
    ),
    (
        "text",
        {"name": "mlm", "corruption": "mask_only"},
        MaskedTokens(vocab_size=257, mask_token=257, corruption="mask_only"),
    ),
    (
        "glue",
        {"name": "mlm"},
        MaskedTokens(vocab_size=261, mask_token=4, special_tokens=(0, 1, 2, 3, 4)),
    ),
    (
        "corpus",
        {"mlm_probability": 0.3},
        MaskedOrder(
            vocab_size=30_000,
            mask_token=4,
            special_tokens=(0, 1, 2, 3, 4),
            mlm_probability=0.3,
        ),
    ),
]


@pytest.mark.parametrize(("task", "options", "expected"), OBJECTIVES)
def test_an_option_of_the_objective_reaches_it(task, options, expected):
    config = make_config(task=task, **prefixed("objective", options))
    objective = Experiment(config).objective
    assert type(objective) is type(expected)
    np.testing.assert_equal(vars(objective), vars(expected))


# A task, the augmentations that are switched on, and the functions that they apply.
AUGMENTATIONS = [
    ("image", ["flip_horizontal"], [(flip, {"axis": 1})]),
    ("pathfinder", ["flip_vertical"], [(flip, {"axis": 0})]),
    (
        "pathfinder",
        ["flip_vertical", "flip_horizontal"],
        [(flip, {"axis": 1}), (flip, {"axis": 0})],
    ),
    (
        "listops",
        ["shuffle_arguments"],
        [(shuffle_arguments, {"operators": range(1, 5), "close": 5})],
    ),
]


@pytest.mark.parametrize(("task", "names", "expected"), AUGMENTATIONS)
def test_an_augmentation_reaches_the_step(task, names, expected):
    options = prefixed("train", dict.fromkeys(names, True))
    programs = Experiment(make_config(task=task, **options)).make_programs()
    (augmentations,) = programs.augment.args
    assert [(each.func, each.keywords) for each in augmentations] == expected


# Another value than the default for every option of the optimizer.
OPTIMIZER = {
    "learning_rate": 3e-3,
    "warmup_steps": 1,
    "weight_decay": 0.3,
    "b1": 0.5,
    "b2": 0.9,
    "eps": 0.1,
    "cycle_b1": True,
    "decay": "none",
}


def optimize(optimizer):
    """The values of a number after each of four steps with growing gradients."""
    theta = jnp.ones(1)
    state = optimizer.init(theta)
    values = []
    for gradient in (0.1, 0.2, 0.3, 0.4):
        updates, state = optimizer.update(jnp.full(1, gradient), state, theta)
        theta = theta + updates
        values.append(theta.item())
    return values


def test_the_table_has_every_option_of_the_optimizer():
    assert OPTIMIZER.keys() == key_types(OptimizerConfig).keys()


@pytest.mark.parametrize("key", OPTIMIZER)
def test_an_option_of_the_optimizer_reaches_it(key):
    """The number of steps over which the rate decays reaches it too."""
    base = {"warmup_steps": 2, "learning_rate": 1e-3}
    options = base | {key: OPTIMIZER[key]}
    config = make_config(**prefixed("optimizer", options), train__num_steps=4)
    optimizer = Experiment(config).make_programs().optimizer

    values = optimize(optimizer)

    changed = make_optimizer(OptimizerConfig(**options), num_steps=4)
    unchanged = make_optimizer(OptimizerConfig(**base), num_steps=4)
    assert relative_error(values, optimize(changed)) <= TOLERANCE["same"]
    assert relative_error(values, optimize(unchanged)) > 10 * TOLERANCE["same"]


def test_a_batch_is_cut_into_the_parts_and_lengths_of_the_config():
    """The compiled step has a loop over the parts, and a branch for each length."""
    config = make_config(
        "identity,quick",
        train__grad_accum_steps=4,
        train__length_buckets=5,
        model__num_layers=1,
        model__num_heads=2,
        model__model_dim=8,
        model__mlp_dim=16,
        model__dropout_rate=0.0,
    )
    experiment = Experiment(config)
    programs = experiment.make_programs()
    state = programs.init.eval_shape(np.uint32(0))
    split = make_split(0, 32, experiment.task.max_length)
    chunk = HostSplit.from_split(split).chunk(np.arange(32)[None])

    loop_lengths = set()
    branch_counts = set()
    for equation in equations(programs.train_chunk, state, chunk):
        if equation.primitive.name == "scan":
            loop_lengths.add(equation.params["length"])
        elif equation.primitive.name == "cond":
            branch_counts.add(len(equation.params["branches"]))

    assert 4 in loop_lengths
    assert 5 in branch_counts


def test_an_option_of_the_task_reaches_it():
    options = {
        "max_length": 64,
        "num_train": 7,
        "num_validation": 5,
        "num_test": 3,
        "min_tokens": 10,
        "max_tokens": 60,
        "max_depth": 4,
        "max_args": 5,
        "seed": 9,
    }
    task = Experiment(make_config(**prefixed("task", options))).task
    assert task == get_task("listops", **options)
    for name, value in options.items():
        assert getattr(task, name) == value
