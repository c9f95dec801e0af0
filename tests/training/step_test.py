"""A step: weights, dropout and variables; a chunk of steps; a NaN that stops it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training.checkpoint import weights_sha256
from nystromformer.training.data import Chunk, HostSplit, train_example_ids
from nystromformer.training.devices import device_put_global
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs, State, program_bytes
from tests.tolerance import TOLERANCE
from tests.training.conftest import BagOfTokens

BATCH = 8


@pytest.fixture(scope="module")
def programs(optimizer) -> Programs:
    return Programs(BagOfTokens, Classification(), optimizer)


@pytest.fixture(scope="module")
def rows(splits):
    return HostSplit.from_split(splits["train"]).put()


def make_state(programs: Programs, seed: int = 0, **changes: Any) -> State:
    """The state at step 0, but for some of its fields."""
    return programs.init(np.uint32(seed))._replace(**device_put_global(None, changes))


def make_chunk(rows, num_steps: int, first_step: int = 0) -> Chunk:
    """The batches of some steps, in an array with room for six."""
    batches = train_example_ids(0, first_step, 6, 103, BATCH)
    return Chunk(rows, jnp.asarray(batches), num_steps)


def test_train_chunk_equals_single_steps_bit_for_bit(programs, rows):
    at_once, finite = programs.train_chunk(make_state(programs), make_chunk(rows, 6))
    one_by_one = make_state(programs)
    for step in range(6):
        chunk = make_chunk(rows, 1, first_step=step)
        one_by_one, _ = programs.train_chunk(one_by_one, chunk)

    assert finite.name_culprits() == ""
    assert float(at_once.totals.examples) == 6 * BATCH
    assert int(at_once.step) == 6
    assert weights_sha256(at_once) == weights_sha256(one_by_one)
    assert weights_sha256(at_once) != weights_sha256(make_state(programs))


def test_train_chunk_compiles_once_for_all_steps_seeds_and_lengths(optimizer, rows):
    programs = Programs(BagOfTokens, Classification(), optimizer)
    for num_steps, seed in ((1, 0), (6, 0), (6, 1)):
        state = make_state(programs, seed=seed)
        state, _ = programs.train_chunk(state, make_chunk(rows, num_steps))
        programs.train_chunk(state, make_chunk(rows, 1, first_step=num_steps))
    assert programs.train_chunk._cache_size() == 1


def test_train_chunk_keeps_what_a_model_changes_without_training_it(programs, rows):
    state, _ = programs.train_chunk(make_state(programs), make_chunk(rows, 3))
    assert int(state.weights.variables["calls"][...]) == 3
    assert "calls" not in state.weights.params


class CountingInEvaluation(BagOfTokens):
    """Writes to a variable in every call, as a norm with running means may."""

    def __call__(self, inputs, mask, dropout_rng=None):
        self.calls[...] += 1
        return super().__call__(inputs, mask, dropout_rng)


def test_eval_chunk_takes_a_model_that_writes_to_its_variables(programs, splits):
    weights = make_state(programs).weights
    validation = HostSplit.from_split(splits["validation"])
    counting = Programs(CountingInEvaluation, Classification())
    metrics = evaluate(counting, weights, validation, BATCH)
    expected = evaluate(programs, weights, validation, BATCH)
    assert metrics == pytest.approx(expected, rel=TOLERANCE["same"])


def test_train_chunk_stops_at_a_nan_and_names_it(programs, rows):
    state = make_state(programs)
    state.weights.params["out"]["bias"][...] = jnp.array([0.0, jnp.nan, 0.0])
    state, finite = programs.train_chunk(state, make_chunk(rows, 6))
    assert int(state.step) == 1
    assert finite.name_culprits() == (
        "the loss, the gradient of embedding.embedding, the gradient of out.bias "
        "and 1 more"
    )


@pytest.mark.parametrize("is_donated", [False, True])
def test_program_bytes_counts_what_is_donated_once(is_donated):
    add = jax.jit(jnp.add, donate_argnums=0 if is_donated else ())
    array = jax.ShapeDtypeStruct((1009,), jnp.float32)
    num_bytes = program_bytes(add.lower(array, array).compile())
    assert num_bytes is not None
    num_arrays = 2 if is_donated else 3
    assert 0 <= num_bytes - num_arrays * 4 * 1009 < 100


def test_program_bytes_are_unknown_where_the_backend_does_not_say():
    class Silent:
        def memory_analysis(self):
            return None

    compiled = jax.jit(lambda x: x + 1).lower(1.0).compile()
    assert program_bytes(compiled)
    assert program_bytes(Silent()) is None
