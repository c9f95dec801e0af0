"""What a training step costs, counted: one with more products or arrays fails here."""

import pytest

from nystromformer.experiments.bench.train_steps import (
    made_up_examples,
    task_config,
    train_program,
)
from nystromformer.experiments.bench.variants import parse_variants
from nystromformer.experiments.run import Experiment

pytestmark = pytest.mark.usefixtures("optimised")

BATCH, LENGTH = 8, 512
LAYERS, HEADS, HEAD_DIM, LANDMARKS = 2, 2, 32, 64
MODEL_DIM, MLP_DIM = 64, 128
TOKENS = BATCH * LENGTH
MLP = 2 * MODEL_DIM * MLP_DIM
ATTENTION = HEADS * (
    6 * LANDMARKS * HEAD_DIM  # four large products, and two for the landmarks
    + 24 * LANDMARKS**3 / LENGTH  # six iterations
)
# Multiplications a token and layer, forward; arrays [B, L, D] that a step holds.
COSTS = {
    "nystrom-64": (4 * MODEL_DIM**2 + MLP + ATTENTION, 81),
    "identity": (2 * MODEL_DIM**2 + MLP, 41),
}


@pytest.mark.parametrize(
    "label", ["nystrom-64", pytest.param("identity", marks=pytest.mark.slow)]
)
def test_a_step_makes_each_product_thrice_and_holds_no_more_arrays(label):
    """Thrice: once, and once for the gradient of each factor."""
    [variant] = parse_variants([label], [])
    sizes = {"max_length": LENGTH, "batch_size": BATCH}
    experiment = Experiment.from_config(task_config("text", variant, sizes))
    data = made_up_examples(experiment.task, BATCH)
    cost = train_program(label, experiment, data).cost
    assert cost
    multiplications, arrays = COSTS[label]
    expected = 3 * 2 * TOKENS * LAYERS * multiplications
    assert 1 <= cost["flops"] / expected < 1.04  # the convolution of V, the positions
    assert cost["temp_bytes"] / (4 * TOKENS * MODEL_DIM) < arrays
