"""Settings of single layers: their two forms, and their rule."""

import pytest

from nystromformer.by_layer import (
    add_default_options,
    attentions_by_layer,
    parse_by_layer,
)

COMMON = {"num_landmarks": 64, "conv_kernel_size": 33}


def layers(by_layer, num_layers=3):
    """Plain tuples of the names and options of the layers."""
    attentions = attentions_by_layer(num_layers, "nystrom", COMMON, by_layer)
    return [(name, dict(options)) for name, options in attentions]


def test_layers_that_are_not_named_have_the_common_attention():
    assert layers({}) == 3 * [("nystrom", COMMON)]
    assert layers({1: "softmax"}) == [
        ("nystrom", COMMON),
        ("softmax", {}),
        ("nystrom", COMMON),
    ]


def test_a_layer_of_the_same_name_keeps_the_options_that_it_does_not_change():
    options = {"num_landmarks": 128, "conv_kernel_size": 33}
    for changes in ({"num_landmarks": 128}, {"name": "nystrom", "num_landmarks": 128}):
        assert layers({2: changes})[2] == ("nystrom", options)
    linformer = {"name": "linformer", "projection_dim": 8}
    assert layers({2: linformer})[2] == ("linformer", {"projection_dim": 8})


def test_the_text_says_the_same_as_the_mapping():
    text = "0=softmax 0.dropout_rate=0.1  3.num_landmarks=128 3.pinv=exact 12=mine-2"
    assert parse_by_layer(text) == {
        0: {"name": "softmax", "dropout_rate": 0.1},
        3: {"num_landmarks": 128, "pinv": "exact"},
        12: {"name": "mine-2"},
    }
    assert parse_by_layer("") == {}


@pytest.mark.parametrize(
    "text",
    [
        "softmax nystrom",
        "0",
        "0=",
        "=softmax",
        "-1=softmax",
        "x.num=3",
        "0,1=3",
        "0.=softmax",
    ],
)
def test_another_text_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"as in '0=softmax 3\.num.*', got '"):
        parse_by_layer(text)


@pytest.mark.parametrize("text", ["0=softmax 0=linear", "1.seed=3 1.seed=4"])
def test_a_text_that_says_two_things_of_one_layer_is_refused(text):
    key = text.partition("=")[0]
    with pytest.raises(ValueError, match=f"by_layer has {key} twice: '{text}'"):
        parse_by_layer(text)


@pytest.mark.parametrize(
    ("by_layer", "message"),
    [
        ({3: "softmax"}, "no layer 3 to have .*: the 3 layers are 0 to 2$"),
        ({-1: "softmax"}, "no layer -1 to have"),
        ({"0": "softmax"}, "no layer '0' to have"),
        ({1: "flash"}, "layer 1: unknown attention 'flash'; known: nystrom"),
        ({1: {"window": 3}}, "layer 1: NystromAttention has no option 'window'"),
        (
            {0: {"name": "softmax", "num_landmarks": 4}},
            "layer 0: SoftmaxAttention has no option 'num_landmarks'",
        ),
        ({2: {"num_landmarks": "4"}}, "layer 2: num_landmarks .* must be int, got '4'"),
    ],
)
def test_a_layer_attention_or_option_that_is_not_there_is_refused(by_layer, message):
    with pytest.raises(ValueError, match=message):
        layers(by_layer)


def test_add_default_options_adds_those_of_a_different_attention():
    options = {"softmax": {"dropout_rate": 0.1}}
    by_layer = {
        0: "softmax",
        1: {"num_landmarks": 4},
        2: {"name": "nystrom"},
        3: {"name": "softmax", "dropout_rate": 0.0},
    }
    assert add_default_options("nystrom", by_layer, options.__getitem__) == {
        0: {"name": "softmax", "dropout_rate": 0.1},
        1: {"num_landmarks": 4},
        2: {"name": "nystrom"},
        3: {"name": "softmax", "dropout_rate": 0.0},
    }
