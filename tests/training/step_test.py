"""The steps: the same bits in any chunk, compiled once, stopped by a NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.heads import SequenceClassifier
from nystromformer.training.checkpoint import digest
from nystromformer.training.data import Data, train_indices
from nystromformer.training.step import (
    make_eval_step,
    make_init,
    make_train_chunk,
    split_weights,
)

BATCH = 8


@pytest.fixture
def program(make_model, optimizer, splits):
    """init, the compiled chunk, and the training data."""
    graphdef, _ = split_weights(make_model(nnx.Rngs(0)))
    init = make_init(make_model, optimizer, seed=0)
    chunk = make_train_chunk(graphdef, optimizer, seed=0)
    return init, chunk, Data.put(splits["train"])


def indices_from(step: int) -> jax.Array:
    return jnp.asarray(train_indices(0, step, 6, 103, BATCH))


def test_a_chunk_of_steps_equals_single_steps_bit_for_bit(program):
    init, chunk, data = program
    at_once, _ = chunk(init(), data, indices_from(0), 6)
    one_by_one = init()
    for step in range(6):
        one_by_one, _ = chunk(one_by_one, data, indices_from(step), 1)
    assert int(at_once.step) == 6
    assert digest(at_once) == digest(one_by_one)
    assert digest(at_once) != digest(init())


def test_chunks_of_every_length_share_one_compiled_program(program):
    init, chunk, data = program
    state = init()
    for num_steps in (1, 4, 6):
        state, _ = chunk(state, data, indices_from(int(state.step)), num_steps)
    assert chunk._cache_size() == 1


def test_dropout_depends_on_the_seed_and_on_the_step(
    make_model, optimizer, program, splits
):
    init, chunk, data = program
    graphdef, _ = split_weights(make_model(nnx.Rngs(0)))
    other_seed = make_train_chunk(graphdef, optimizer, seed=1)
    step_zero, _ = chunk(init(), data, indices_from(0), 1)
    assert digest(step_zero) != digest(other_seed(init(), data, indices_from(0), 1)[0])
    later = init()._replace(step=jnp.int32(1))
    later, _ = chunk(later, data, indices_from(0), 1)
    assert digest(step_zero.weights.params) != digest(later.weights.params)


def test_at_step_is_called_and_its_variables_are_kept_but_not_trained(program):
    init, chunk, data = program
    state, _ = chunk(init(), data, indices_from(0), 3)
    assert int(state.weights.variables["calls"][...]) == 20  # the third step is step 2
    assert "calls" not in state.weights.params


def test_a_nan_stops_the_chunk_and_is_named(program):
    init, chunk, data = program
    state = init()
    state.weights.params["out"]["bias"][...] = jnp.array([0.0, jnp.nan, 0.0])
    state, finite = chunk(state, data, indices_from(0), 6)
    assert int(state.step) == 1
    assert finite.culprits() == [
        "the loss",
        "the gradient of embedding.embedding",
        "the gradient of out.bias",
        "the gradient of out.kernel",
    ]


def test_nothing_is_named_when_all_is_finite(program):
    init, chunk, data = program
    state, finite = chunk(init(), data, indices_from(0), 6)
    assert finite.culprits() == []
    assert float(state.totals.weight) == 6 * BATCH


def test_the_model_and_the_steps_run_without_graph_mode(optimizer, splits):
    def make_model(rngs):
        return SequenceClassifier(
            num_classes=3,
            vocab_size=11,
            max_length=7,
            num_layers=1,
            model_dim=6,
            mlp_dim=5,
            attention_options={
                "num_landmarks": 2,
                "num_pinv_iters": 1,
                "conv_kernel_size": 3,
            },
            rngs=rngs,
        )

    def digest_after_two_steps():
        graphdef, _ = split_weights(make_model(nnx.Rngs(0)))
        chunk = make_train_chunk(graphdef, optimizer, seed=0)
        init = make_init(make_model, optimizer, seed=0)
        data = Data.put(splits["train"])
        state, _ = chunk(init(), data, indices_from(0), 2)
        evaluated = make_eval_step(graphdef)(
            *(state.weights, data, indices_from(0)[0], jnp.ones(BATCH)),
            *(state.totals, data.inputs.shape[1]),
        )
        assert float(evaluated.weight) == 3 * BATCH
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state.weights)]

    usual = digest_after_two_steps()
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        plain = digest_after_two_steps()
    for a, b in zip(usual, plain, strict=True):
        np.testing.assert_array_equal(a, b)
