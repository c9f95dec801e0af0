"""What is captured is what the layers compute from the tokens."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.study.capture import capture
from nystromformer.heads import PairClassifier, SequenceClassifier
from nystromformer.training.data import Data
from tests.tolerance import TOLERANCE, relative_error

L, N, D = 11, 3, 6
SIZES = {"vocab_size": 7, "max_length": L, "num_heads": N, "model_dim": D, "mlp_dim": 5}


def make(attention, classifier=SequenceClassifier, remat="none", **options):
    config = EncoderConfig(
        **SIZES, attention=attention, attention_options=options, remat=remat
    )
    return classifier(config, num_classes=2, rngs=nnx.Rngs(0))


def make_data(lengths=(3, 11, 7, 9, 5), pairs=None):
    rng = np.random.default_rng(0)
    return Data(
        inputs=jnp.asarray(rng.integers(1, 7, (5, L))),
        lengths=lengths and jnp.asarray(lengths),
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


@pytest.mark.parametrize("remat", ["none", "block"])
def test_a_shared_attention_without_a_mask_is_recorded_once_a_layer(remat):
    model = make("linformer", remat=remat, projection_dim=4, sharing="layer")
    layers = capture(model, make_data(lengths=None), np.arange(2))
    assert [layer.query.shape for layer in layers] == [(2, L, N, D // N)] * 2
    assert all(layer.mask.all() for layer in layers)


def test_both_sequences_of_a_pair_are_examples():
    data = make_data(pairs=jnp.asarray([[0, 1], [2, 3]]))
    layers = capture(make("softmax", PairClassifier), data, np.array([1]))
    assert layers[0].mask.sum(1).tolist() == [7, 9]


def test_what_has_no_queries_is_refused():
    with pytest.raises(ConfigError, match="'identity' has no queries and keys"):
        capture(make("identity"), make_data(), np.arange(2))
