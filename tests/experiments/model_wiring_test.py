"""Each option of a model and of an attention reaches the module that it is for.

What an Experiment makes is compared with what one would make by hand. The tables have a
row for every key, so that a new option needs one.
"""

import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer import classifiers
from nystromformer.attention import find_attention, make_attention
from nystromformer.config import ModelConfig, key_types
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.experiment import Experiment
from tests.experiments.model_form import (
    form_by_hand,
    form_of_experiment,
    form_of_module,
)
from tests.small import BUILT_IN_ATTENTIONS, make_config, prefixed


def listops_classifier(rngs, *, pooling="mean", **changes):
    """The paper's model of ListOps, of one layer."""
    options = {
        "vocab_size": 16,
        "max_length": 2000,
        "num_layers": 1,
        "num_heads": 2,
        "model_dim": 64,
        "mlp_dim": 128,
        "attention": "nystrom",
        "attention_options": find_attention("nystrom").config_defaults(),
        "dropout_rate": 0.1,
    }
    config = EncoderConfig(**options | changes)
    return classifiers.SequenceClassifier(
        config, num_classes=10, pooling=pooling, rngs=rngs
    )


# Another value than the paper's for every option of the model.
MODEL = {
    "num_layers": 3,
    "num_heads": 4,
    "model_dim": 32,
    "mlp_dim": 96,
    "dropout_rate": 0.25,
    "norm": "post",
    "norm_epsilon": 1e-12,
    "gelu": "tanh",
    "num_token_types": 2,
    "embedding_norm": True,
    "ignore_id": 7,
    "positions": "rotary",
    "short_conv": 3,
    "remat": "block",
    "dtype": "bfloat16",
    "pooling": "max",
}


def test_the_table_has_every_option_of_the_model():
    assert MODEL.keys() == key_types(ModelConfig).keys()


@pytest.mark.parametrize("key", MODEL)
def test_an_option_of_the_model_reaches_it(key):
    options = {"num_layers": 1, key: MODEL[key]}
    arguments = dict(options)
    if key == "dtype":
        arguments["dtype"] = jnp.dtype("bfloat16")

    experiment_form = form_of_experiment(make_config(**prefixed("model", options)))

    changed = form_by_hand(lambda rngs: listops_classifier(rngs, **arguments))
    assert experiment_form == changed
    assert experiment_form != form_by_hand(listops_classifier)


# Another value than the paper's for every option of every attention.
OPTIONS = {
    "nystrom": {
        "num_landmarks": 32,
        "num_pinv_iters": 4,
        "conv_kernel_size": 5,
        "landmark_padding": "count",
        "landmarks": "random",
        "landmark_seed": 3,
        "pinv": "exact",
        "pinv_init": "per_batch",
        "pinv_kernel": True,
        "fused": True,
    },
    "softmax": {"dropout_rate": 0.3, "fused": False},
    "bigbird": {"block_size": 16, "num_random_blocks": 2},
    "efficient": {},
    "linear": {},
    "linformer": {"projection_dim": 16, "sharing": "layerwise_per_head"},
    "longformer": {"window": 16},
    "performer": {"num_features": 16, "kernel": "published", "redraw_features": True},
    "reformer": {
        "num_hashes": 3,
        "bucket_size": 16,
        "lsh_scope": "chunk",
        "redraw_hashes": True,
    },
    "identity": {},
}


def test_the_table_has_every_option_of_every_attention():
    assert OPTIONS.keys() == BUILT_IN_ATTENTIONS.keys()
    for name, cls in BUILT_IN_ATTENTIONS.items():
        assert set(OPTIONS[name]) == set(cls.options())
        assert not OPTIONS[name].items() & cls.config_defaults().items()


# An attention, and the option that is left out of its changes. The kernel is one of the
# iterations, which another inverse does without.
CHANGED = [(name, "pinv_kernel") for name in OPTIONS] + [("nystrom", "pinv")]


@pytest.mark.parametrize(("name", "left_out"), CHANGED)
@pytest.mark.parametrize("is_changed", [False, True])
def test_the_options_of_the_attention_reach_it_in_every_layer(
    name, left_out, is_changed
):
    """A [CLS] in front makes a sequence longer by one."""
    changes = dict(OPTIONS[name]) if is_changed else {}
    changes.pop(left_out, None)
    config = make_config(
        name, model__pooling="cls_token", **prefixed("attention", changes)
    )
    experiment = Experiment(config)
    model = nnx.eval_shape(lambda: experiment.make_model(nnx.Rngs(0)))

    options = find_attention(name).config_defaults() | changes
    expected = form_by_hand(
        lambda rngs: make_attention(
            name, num_heads=2, head_dim=32, max_length=2001, rngs=rngs, **options
        )
    )
    for block in model.encoder.blocks:
        assert form_of_module(block.attention.attention) == expected


def test_the_attention_of_a_layer_reaches_it():
    """Another attention than that of the config has the defaults of configs."""
    config = make_config(
        model__num_layers=3, attention__by_layer="0=softmax 2.num_landmarks=8"
    )
    dropout_rate = find_attention("softmax").config_defaults()["dropout_rate"]
    by_layer = {
        0: {"name": "softmax", "dropout_rate": dropout_rate},
        2: {"num_landmarks": 8},
    }

    experiment_form = form_of_experiment(config)

    changed = form_by_hand(
        lambda rngs: listops_classifier(rngs, num_layers=3, attention_by_layer=by_layer)
    )
    unchanged = form_by_hand(lambda rngs: listops_classifier(rngs, num_layers=3))
    assert experiment_form == changed
    assert experiment_form != unchanged
