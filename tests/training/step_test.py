"""The steps: the same bits in any chunk, compiled once, stopped by a NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.heads import SequenceClassifier
from nystromformer.training.arrays import digest
from nystromformer.training.data import Data, train_indices
from nystromformer.training.devices import one_device, put
from nystromformer.training.objective import Classification
from nystromformer.training.step import (
    make_eval_chunk,
    make_init,
    make_train_chunk,
    split_weights,
)

BATCH = 8
SEED = np.uint32(0)
OBJECTIVE = Classification()


@pytest.fixture
def program(make_model, optimizer, splits):
    """init, the compiled chunk, and the training data."""
    graphdef, _ = split_weights(make_model(nnx.Rngs(0)))
    init = make_init(make_model, optimizer, OBJECTIVE)
    chunk = make_train_chunk(graphdef, optimizer, OBJECTIVE)
    return init, chunk, Data.put(splits["train"])


def indices_from(step: int) -> jax.Array:
    return jnp.asarray(train_indices(0, step, 6, 103, BATCH))


def test_a_chunk_of_steps_equals_single_steps_bit_for_bit(program):
    init, chunk, data = program
    at_once, _ = chunk(init(SEED), data, indices_from(0), 6)
    one_by_one = init(SEED)
    for step in range(6):
        one_by_one, _ = chunk(one_by_one, data, indices_from(step), 1)
    assert int(at_once.step) == 6
    assert digest(at_once) == digest(one_by_one)
    assert digest(at_once) != digest(init(SEED))


def test_chunks_of_every_length_share_one_compiled_program(program):
    init, chunk, data = program
    state = init(SEED)
    for num_steps in (1, 4, 6):
        state, _ = chunk(state, data, indices_from(int(state.step)), num_steps)
    assert chunk._cache_size() == 1


def test_dropout_depends_on_the_seed_and_on_the_step_and_compiles_once(program):
    init, chunk, data = program
    changes = ({}, {"seed": np.uint32(1)}, {"step": np.int32(1)})
    states = [init(SEED)._replace(**put(one_device(), change)) for change in changes]
    after = [chunk(state, data, indices_from(0), 1)[0] for state in states]
    assert len({digest(state.weights.params) for state in after}) == 3
    assert chunk._cache_size() == 1


def test_the_weights_depend_on_the_seed_as_those_of_rngs(program, make_model):
    init, _, _ = program
    _, weights = split_weights(make_model(nnx.Rngs(3)))
    for seed, same in ((3, True), (0, False)):
        kernel = init(np.uint32(seed)).weights.params["out"]["kernel"][...]
        assert np.allclose(kernel, weights.params["out"]["kernel"][...]) == same


def test_at_step_is_called_and_its_variables_are_kept_but_not_trained(program):
    init, chunk, data = program
    state, _ = chunk(init(SEED), data, indices_from(0), 3)
    assert int(state.weights.variables["calls"][...]) == 20  # the third step is step 2
    assert "calls" not in state.weights.params


def test_a_nan_stops_the_chunk_and_is_named(program):
    init, chunk, data = program
    state = init(SEED)
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
    state, finite = chunk(init(SEED), data, indices_from(0), 6)
    assert finite.culprits() == []
    assert float(state.totals.examples) == 6 * BATCH


def test_the_model_and_the_steps_run_without_graph_mode(optimizer, splits):
    def make_model(rngs):
        options = {"num_landmarks": 2, "num_pinv_iters": 1, "conv_kernel_size": 3}
        config = EncoderConfig(
            vocab_size=11,
            max_length=7,
            num_layers=1,
            model_dim=6,
            mlp_dim=5,
            attention_options=options,
        )
        return SequenceClassifier(config, num_classes=3, rngs=rngs)

    def digest_after_two_steps():
        graphdef, _ = split_weights(make_model(nnx.Rngs(0)))
        chunk = make_train_chunk(graphdef, optimizer, OBJECTIVE)
        init = make_init(make_model, optimizer, OBJECTIVE)
        data = Data.put(splits["train"])
        state, _ = chunk(init(SEED), data, indices_from(0), 2)
        evaluated = make_eval_chunk(graphdef, OBJECTIVE)(
            *(state.weights, data, indices_from(0), jnp.ones((6, BATCH)), 2),
            *(state.totals, data.inputs.shape[1]),
        )
        assert float(evaluated.examples) == 4 * BATCH
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state.weights)]

    usual = digest_after_two_steps()
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        plain = digest_after_two_steps()
    for a, b in zip(usual, plain, strict=True):
        np.testing.assert_array_equal(a, b)
