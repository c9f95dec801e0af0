"""What differs on a GPU or TPU: programs lowered for them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from lra_tasks.split import Split
from nystromformer.encoder import SelfAttention
from nystromformer.encoder_config import EncoderConfig
from nystromformer.experiments.experiment import Experiment
from nystromformer.pinv import iterative_pinv
from nystromformer.training.data import HostSplit
from tests.small import make_config

PLATFORMS = ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_inverse_is_a_loop_on_a_tpu_alone(platform):
    matrix = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    lowered = jax.jit(iterative_pinv).trace(matrix)
    text = lowered.lower(lowering_platforms=(platform,)).as_text()
    assert ("stablehlo.while" in text) == (platform == "tpu")


def test_the_whole_state_of_training_is_donated():
    config = make_config("linear", train__batch_size=2, model__num_layers=1)
    experiment = Experiment(config)
    programs = experiment.make_programs()
    state = programs.init.eval_shape(np.uint32(0))
    task = experiment.task
    example = Split(
        inputs=np.zeros((1, task.max_length), task.dtype),
        lengths=np.zeros(1, np.int32),
        labels=np.zeros(1, np.int32),
    )
    split = HostSplit.from_split(example)
    chunk = split.chunk(np.zeros((1, 2), np.int32), None)
    traced = programs.train_chunk.trace(state, chunk)
    for platform in PLATFORMS:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        num_donated = text.count("tf.aliasing_output") + text.count("jax.buffer_donor")
        assert num_donated == len(jax.tree.leaves(state))


@pytest.mark.parametrize("precision", ["default", "highest"])
def test_float32_products_have_the_precision_that_jax_is_asked_for(precision):
    """The attention is linear: Nyström's sets the precision of some products."""
    config = EncoderConfig(
        vocab_size=11,
        max_length=16,
        model_dim=8,
        num_heads=2,
        attention="linear",
    )
    graphdef, weights = nnx.split(SelfAttention(config, rngs=nnx.Rngs(0)))

    def attend(weights, x):
        return nnx.merge(graphdef, weights)(x, None)

    x = jax.ShapeDtypeStruct((2, 16, 8), jnp.float32)
    with jax.default_matmul_precision(precision):
        traced = jax.jit(attend).trace(weights, x)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    precisions = re.findall(r"precision = \[(\w+), (\w+)\]", text)
    num_products = text.count("dot_general")
    assert num_products > 0
    assert len(precisions) == num_products
    assert set(precisions) == {(precision.upper(), precision.upper())}
