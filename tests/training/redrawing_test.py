"""A model whose attention draws new features or hashes in each training step."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nystromformer.classifiers import SequenceClassifier
from nystromformer.encoder_config import EncoderConfig
from nystromformer.training.checkpoint import weights_sha256
from nystromformer.training.data import Chunk, HostSplit, train_example_ids
from nystromformer.training.devices import device_put_global
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs
from tests.training.conftest import make_split

# The tests of the attentions hold by which key they draw, keys_test the keys of a step.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[True, False], ids=["redrawn", "kept"])
def redraws(request):
    return request.param


@pytest.fixture(scope="module", params=["performer", "reformer"])
def programs(request, redraws):
    """The programs of a model that draws nothing but features or hashes."""
    options = {
        "performer": {"num_features": 5, "redraw_features": redraws},
        "reformer": {"bucket_size": 2, "redraw_hashes": redraws},
    }
    config = EncoderConfig(
        vocab_size=11,
        max_length=7,
        model_dim=8,
        mlp_dim=8,
        num_heads=2,
        num_layers=2,
        dropout_rate=0.0,
        attention=request.param,
        attention_options=options[request.param],
    )

    def make_model(rngs):
        return SequenceClassifier(config, num_classes=3, rngs=rngs)

    return Programs(make_model, Classification(), optax.sgd(0.1))


ROWS = HostSplit.from_split(make_split(seed=0, num_examples=103))
BATCHES = train_example_ids(
    seed=0, first_step=0, num_steps=4, num_examples=103, batch_size=8
)


def train(programs, state, first_step, num_steps):
    """The state after some of the four batches."""
    batches = jnp.roll(jnp.asarray(BATCHES), -first_step, axis=0)
    return programs.train_chunk(state, Chunk(ROWS.put(), batches, num_steps))[0]


def start(programs, **changes):
    """A state with the weights of seed 0."""
    changes = device_put_global(None, changes)
    return programs.init(np.uint32(0))._replace(**changes)


def test_a_step_redraws_by_seed_and_step(programs, redraws):
    def hash_after_a_step(**changes):
        state = start(programs, **changes)
        return weights_sha256(train(programs, state, 0, 1).weights.params)

    first_hash = hash_after_a_step()
    assert hash_after_a_step() == first_hash
    hash_of_seed_1 = hash_after_a_step(seed=np.uint32(1))
    hash_of_step_1 = hash_after_a_step(step=np.int32(1))
    num_hashes = len({first_hash, hash_of_seed_1, hash_of_step_1})
    assert num_hashes == (3 if redraws else 1)


def test_a_run_that_redraws_is_resumed_bit_equal(programs):
    at_once = train(programs, start(programs), 0, 4)
    resumed = train(programs, train(programs, start(programs), 0, 2), 2, 2)
    assert weights_sha256(at_once) == weights_sha256(resumed)
