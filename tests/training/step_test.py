"""The steps: the same bits in any chunk, compiled once, stopped by a NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.training.checkpoint import weights_sha256
from nystromformer.training.data import Data, train_indices
from nystromformer.training.devices import device_put_global
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs, split_weights
from tests.training.conftest import BagOfTokens

BATCH = 8
SEED = np.uint32(0)


@pytest.fixture
def program(optimizer, splits):
    """init, the compiled chunk, and the training data."""
    programs = Programs(BagOfTokens, Classification(), optimizer)
    return programs.init, programs.train_chunk, Data.of(splits["train"]).put()


def indices_from(step: int) -> jax.Array:
    return jnp.asarray(train_indices(0, step, 6, 103, BATCH))


def test_train_chunk_equals_single_steps_bit_for_bit(program):
    init, chunk, data = program
    at_once, finite = chunk(init(SEED), data, indices_from(0), 6)
    assert finite.culprits() == []
    assert float(at_once.totals.examples) == 6 * BATCH
    one_by_one = init(SEED)
    for step in range(6):
        one_by_one, _ = chunk(one_by_one, data, indices_from(step), 1)
    assert int(at_once.step) == 6
    assert chunk._cache_size() == 1  # a program for every number of steps
    assert weights_sha256(at_once) == weights_sha256(one_by_one)
    assert weights_sha256(at_once) != weights_sha256(init(SEED))


def test_train_chunk_draws_dropout_by_seed_and_step_and_compiles_once(program):
    init, chunk, data = program
    changes = ({}, {"seed": np.uint32(1)}, {"step": np.int32(1)})
    states = [init(SEED)._replace(**device_put_global(None, x)) for x in changes]
    after = [chunk(state, data, indices_from(0), 1)[0] for state in states]
    assert len({weights_sha256(state.weights.params) for state in after}) == 3
    assert chunk._cache_size() == 1


def test_init_makes_the_weights_of_rngs_of_the_seed(program):
    init, _, _ = program
    _, weights = split_weights(BagOfTokens(nnx.Rngs(3)))
    for seed, same in ((3, True), (0, False)):
        kernel = init(np.uint32(seed)).weights.params["out"]["kernel"][...]
        assert np.allclose(kernel, weights.params["out"]["kernel"][...]) == same


def test_train_chunk_keeps_what_a_model_changes_without_training_it(program):
    init, chunk, data = program
    state, _ = chunk(init(SEED), data, indices_from(0), 3)
    assert int(state.weights.variables["calls"][...]) == 3
    assert "calls" not in state.weights.params


class Counted(BagOfTokens):
    """Writes to a variable in every call, as a norm with running means may."""

    def __call__(self, inputs, mask, dropout_rng=None):
        self.calls[...] += 1
        return super().__call__(inputs, mask, dropout_rng)


def test_eval_chunk_takes_a_model_that_writes_to_its_variables(optimizer, splits):
    programs = Programs(Counted, Classification(), optimizer)
    weights = programs.init(SEED).weights
    found = evaluate(programs, weights, Data.of(splits["validation"]), BATCH)
    plain = Programs(BagOfTokens, Classification(), optimizer)
    assert found == evaluate(plain, weights, Data.of(splits["validation"]), BATCH)


def test_train_chunk_stops_at_a_nan_and_names_it(program):
    init, chunk, data = program
    state = init(SEED)
    state.weights.params["out"]["bias"][...] = jnp.array([0.0, jnp.nan, 0.0])
    state, finite = chunk(state, data, indices_from(0), 6)
    assert int(state.step) == 1
    names = ("embedding.embedding", "out.bias", "out.kernel")
    assert finite.culprits() == ["the loss", *(f"the gradient of {x}" for x in names)]
