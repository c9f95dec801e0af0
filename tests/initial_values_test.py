"""The law of every parameter of every model at its start, by its name and shape."""

import re

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from nystromformer import heads
from nystromformer.attention import make_attention
from nystromformer.encoder import EncoderConfig
from nystromformer.training.step import leaves_by_name, split_weights

V, L, D, F, N, H = 300, 128, 64, 96, 16, 4
BESIDE = {  # what only some encoders have
    "num_token_types": 2,
    "embedding_norm": True,
    "attention": "nystrom",
    "attention_options": {"conv_kernel_size": 35},
    "short_conv": 5,
}


def uniform(bound):
    """U(−bound, bound)."""
    return stats.uniform(-bound, 2 * bound)


def by_fan_in(shape):
    """As PyTorch's Linear: U(−1/√inputs, 1/√inputs)."""
    return uniform(shape[0] ** -0.5)


def embedding(shape):
    return stats.norm(0, 0.02)


def by_kernel_size(shape):
    """U(−1/√K, 1/√K), of the convolution of V as published."""
    return uniform(shape[0] ** -0.5)


# The end of a name -> its law by the shape, or the number that it is everywhere.
LAWS = {
    r"(project|attention\.out|expand|contract)\.kernel": by_fan_in,
    r"(hidden|out|transform|pooler|ordered)\.kernel": by_fan_in,
    r"embedding\.kernel": by_fan_in,  # of features
    r"embedding\.embedding": embedding,
    r"(positions|token_types|cls)": embedding,
    r"(conv_kernel|short_conv)": by_kernel_size,
    r"bias": 0,
    r"scale": 1,
}


def law_of(name):
    return next(law for end, law in LAWS.items() if re.search(rf"(^|\.){end}$", name))


def check_law(values, law):
    """Kolmogorov's test, and both ends of a uniform law are reached."""
    values = np.float64(values).ravel()
    if isinstance(law, int):
        assert (values == law).all()
        return
    assert stats.kstest(values, law.cdf).pvalue > 1e-5
    low, high = law.support()
    if np.isfinite(high):
        assert low <= values.min() < 0.9 * low
        assert 0.9 * high < values.max() <= high


def config(**options):
    sizes = {"num_layers": 2, "num_heads": N, "model_dim": D, "mlp_dim": F}
    tokens = {} if "input_dim" in options else {"vocab_size": V}
    given = {"vocab_size": None, "max_length": L, **sizes, **BESIDE, **tokens}
    return EncoderConfig(**given | options)


MODELS = {
    "classifier": lambda rngs: heads.SequenceClassifier(
        config(), num_classes=10, pooling="cls_token", rngs=rngs
    ),
    "pairs": lambda rngs: heads.PairClassifier(config(), num_classes=10, rngs=rngs),
    "features": lambda rngs: heads.SequenceClassifier(
        config(input_dim=24, num_token_types=0), num_classes=10, rngs=rngs
    ),
    "first token": lambda rngs: heads.FirstTokenClassifier(
        config(norm="post"), num_classes=10, rngs=rngs
    ),
    "each token": lambda rngs: heads.TokenClassifier(
        config(), num_classes=10, rngs=rngs
    ),
    "denoising": lambda rngs: heads.DenoisingPairClassifier(
        config(), num_classes=10, rngs=rngs
    ),
    "masked tokens": lambda rngs: heads.MaskedLanguageModel(config(), rngs=rngs),
    "order": lambda rngs: heads.MaskedOrderModel(config(), rngs=rngs),
}


def parameters(make, seed=0):
    """Name -> array."""
    make_weights = jax.jit(lambda: split_weights(make(nnx.Rngs(seed)))[1])
    return {name: np.asarray(x) for name, x in leaves_by_name(make_weights()).items()}


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_starts_by_its_law(model):
    drawn = {}
    for name, values in parameters(MODELS[model]).items():
        law = law_of(name)
        if not isinstance(law, int):
            law = law(values.shape)
            drawn[name] = values.ravel()[:32].tobytes()
        check_law(values, law)
    assert len(set(drawn.values())) == len(drawn)  # no two by one key


@pytest.mark.parametrize(
    "sharing", ["headwise", "key_value", "layerwise", "layerwise_per_head"]
)
@pytest.mark.parametrize("rows", [16, 128])
def test_linformer_starts_with_bounded_keys_or_as_published(rows, sharing):
    """U of variance 1/(L + k), also where k is not L; or N(0, 0.02²)."""
    options = {"projection_dim": rows, "sharing": sharing}
    sizes = {"num_heads": N, "head_dim": H, "max_length": L}
    made = make_attention("linformer", **sizes, rngs=nnx.Rngs(0), **options)
    law = uniform((3 / (L + rows)) ** 0.5)
    if sharing == "layerwise_per_head":
        law = embedding(())
    check_law(made.projection[...], law)
    if sharing == "headwise":
        check_law(made.value_projection[...], law)
        assert not np.array_equal(made.value_projection[...], made.projection[...])


def test_performer_starts_with_rows_as_long_as_gaussian_ones():
    """|w|² is χ² of H degrees of freedom."""
    sizes = {"num_heads": N, "head_dim": H, "max_length": L}
    options = {"num_features": 512}
    made = make_attention("performer", **sizes, rngs=nnx.Rngs(0), **options)
    square = np.square(np.float64(made.projection[...])).sum(-1)
    assert stats.kstest(square, stats.chi2(H).cdf).pvalue > 1e-5
