"""The law of every parameter of every model at its start, by its name and shape."""

import re

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from nystromformer import classifiers, token_models
from nystromformer.attention import make_attention
from nystromformer.encoder import EncoderConfig
from nystromformer.training.step import leaves_by_name, split_weights

# Vocabulary, length, the sizes of model and MLP, heads and their size.
V = 300
L = 128
D = 64
F = 96
N = 16
H = 4


def uniform(bound):
    """U(−bound, bound)."""
    return stats.uniform(-bound, 2 * bound)


def linear_law(shape):
    """U(−1/√inputs, 1/√inputs), as PyTorch's Linear has it."""
    return uniform(shape[0] ** -0.5)


def embedding_law(shape):
    return stats.norm(0, 0.02)


def convolution_law(shape):
    """U(−1/√K, 1/√K), as published for the convolution of the values."""
    return uniform(shape[0] ** -0.5)


# The end of a name, and its law by the shape, or the number that it is everywhere.
LAWS = {
    r"(project|attention\.out|expand|contract)\.kernel": linear_law,
    r"(hidden|out|transform|pooler|ordered)\.kernel": linear_law,
    # The inputs are features.
    r"embedding\.kernel": linear_law,
    r"embedding\.embedding": embedding_law,
    r"(positions|token_types|cls)": embedding_law,
    r"(conv_kernel|short_conv)": convolution_law,
    r"bias": 0,
    r"scale": 1,
}


def find_law(name):
    for end, law in LAWS.items():
        if re.search(rf"(^|\.){end}$", name):
            return law
    raise AssertionError(f"{name} has no law")


def check_law(values, law):
    """Makes Kolmogorov's test, and checks that a uniform law reaches both ends."""
    values = np.float64(values).ravel()
    assert stats.kstest(values, law.cdf).pvalue > 1e-5
    low, high = law.support()
    if np.isfinite(high):
        assert low <= values.min() < 0.9 * low
        assert 0.9 * high < values.max() <= high


def config(*, vocab_size=V, input_dim=None, num_token_types=2, norm="pre"):
    """An encoder with all that has parameters."""
    return EncoderConfig(
        vocab_size=vocab_size,
        input_dim=input_dim,
        max_length=L,
        num_layers=2,
        num_heads=N,
        model_dim=D,
        mlp_dim=F,
        norm=norm,
        num_token_types=num_token_types,
        embedding_norm=True,
        attention="nystrom",
        attention_options={"conv_kernel_size": 35},
        short_conv=5,
    )


FEATURES = config(vocab_size=None, input_dim=24, num_token_types=0)
MODELS = {
    "classifier": lambda rngs: classifiers.SequenceClassifier(
        config(), num_classes=10, pooling="cls_token", rngs=rngs
    ),
    "pairs": lambda rngs: classifiers.PairClassifier(
        config(), num_classes=10, rngs=rngs
    ),
    "features": lambda rngs: classifiers.SequenceClassifier(
        FEATURES, num_classes=10, rngs=rngs
    ),
    "first token": lambda rngs: classifiers.FirstTokenClassifier(
        config(norm="post"), num_classes=10, rngs=rngs
    ),
    "each token": lambda rngs: classifiers.TokenClassifier(
        config(), num_classes=10, rngs=rngs
    ),
    "denoising": lambda rngs: token_models.DenoisingPairClassifier(
        config(), num_classes=10, rngs=rngs
    ),
    "masked tokens": lambda rngs: token_models.MaskedLanguageModel(config(), rngs=rngs),
    "order": lambda rngs: token_models.MaskedOrderModel(config(), rngs=rngs),
}


def make_parameters(make_model):
    """The parameters of a fresh model, by their names."""

    @jax.jit
    def make_weights():
        _, weights = split_weights(make_model(nnx.Rngs(0)))
        return weights

    leaves = leaves_by_name(make_weights())
    return {name: np.asarray(leaf) for name, leaf in leaves.items()}


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_starts_by_its_law_and_a_key_of_its_own(model):
    beginnings = []
    for name, values in make_parameters(MODELS[model]).items():
        law = find_law(name)
        if isinstance(law, int):
            assert (values == law).all()
        else:
            check_law(values, law(values.shape))
            beginnings.append(values.ravel()[:32].tobytes())
    assert len(set(beginnings)) == len(beginnings)


def fresh_attention(name, **options):
    return make_attention(
        name, num_heads=N, head_dim=H, max_length=L, rngs=nnx.Rngs(0), **options
    )


@pytest.mark.parametrize("sharing", ["headwise", "key_value", "layerwise"])
@pytest.mark.parametrize("num_rows", [16, 128])
def test_linformer_starts_with_bounded_keys(num_rows, sharing):
    """Its law is U of variance 1/(L + k), also where k is not L."""
    attention = fresh_attention("linformer", projection_dim=num_rows, sharing=sharing)
    law = uniform((3 / (L + num_rows)) ** 0.5)
    check_law(attention.projection[...], law)
    if sharing == "headwise":
        check_law(attention.value_projection[...], law)
        assert not np.array_equal(
            attention.value_projection[...], attention.projection[...]
        )


@pytest.mark.parametrize("num_rows", [16, 128])
def test_linformer_with_published_sharing_starts_as_published(num_rows):
    """Its law is N(0, 0.02²)."""
    attention = fresh_attention(
        "linformer", projection_dim=num_rows, sharing="layerwise_per_head"
    )
    check_law(attention.projection[...], stats.norm(0, 0.02))


def test_performer_starts_with_rows_as_long_as_gaussian_ones():
    """|w|² is χ² of H degrees of freedom."""
    attention = fresh_attention("performer", num_features=512)
    squares = np.square(np.float64(attention.projection[...])).sum(-1)
    assert stats.kstest(squares, stats.chi2(H).cdf).pvalue > 1e-5
