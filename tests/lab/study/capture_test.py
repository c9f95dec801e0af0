"""What is captured is what the layers compute from the tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.heads import PairClassifier, SequenceClassifier
from nystromformer.lab.study.capture import capture
from nystromformer.training.data import Data
from tests.tolerance import TOLERANCE, relative_error

L, N, D = 11, 3, 6
SIZES = {
    "num_classes": 2,
    "vocab_size": 7,
    "max_length": L,
    "num_layers": 2,
    "num_heads": N,
    "model_dim": D,
    "mlp_dim": 5,
}


def make(attention, classifier=SequenceClassifier, **options):
    return classifier(
        **SIZES, attention=attention, attention_options=options, rngs=nnx.Rngs(0)
    )


def make_data(pairs=None):
    rng = np.random.default_rng(0)
    return Data(
        inputs=jnp.asarray(rng.integers(1, 7, (5, L))),
        lengths=jnp.asarray([3, 11, 7, 9, 5]),
        labels=jnp.zeros(5, jnp.int32),
        pairs=pairs,
    )


def test_the_first_layer_gets_the_projections_of_the_embedded_tokens():
    model, data = make("nystrom", num_landmarks=4), make_data()
    examples = np.array([1, 2])
    block, encoder = model.encoder.blocks[0], model.encoder
    project = np.asarray(block.attention.project.kernel[...])
    x = np.asarray(encoder.embedding.embedding[...])[np.asarray(data.inputs)[examples]]
    x = x + np.asarray(encoder.positions[...])
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    expected = (x @ project).reshape(2, L, 3, N, D // N)
    first, second = capture(model, data, examples)
    for i, found in enumerate((first.query, first.key, first.value)):
        assert relative_error(found, expected[:, :, i]) <= TOLERANCE["float32"]
    for layer in (first, second):
        assert layer.mask.tolist() == [[True] * 11, [True] * 7 + [False] * 4]
    assert relative_error(second.query, first.query) > 0.1


@pytest.mark.slow
def test_recording_changes_no_logits():
    model, data = make("nystrom", num_landmarks=4), make_data()
    batch = data.take(jnp.arange(5), jnp.ones(5))
    before = model(batch.inputs, batch.mask)
    capture(model, data, np.arange(5))
    assert (model(batch.inputs, batch.mask) == before).all()


def test_a_shared_attention_is_recorded_once_a_layer():
    model = make("linformer", projection_dim=4, sharing="layer")
    assert model.encoder.shared is not None
    layers = capture(model, make_data(), np.arange(2))
    assert [layer.query.shape for layer in layers] == [(2, L, N, D // N)] * 2


def test_both_sequences_of_a_pair_are_examples():
    pairs = jnp.asarray([[0, 1], [2, 3]])
    layers = capture(make("softmax", PairClassifier), make_data(pairs), np.array([1]))
    assert layers[0].mask.sum(1).tolist() == [7, 9]


def test_what_has_no_queries_is_refused():
    with pytest.raises(ConfigError, match="'none' has no queries and keys"):
        capture(make("none"), make_data(), np.arange(2))
