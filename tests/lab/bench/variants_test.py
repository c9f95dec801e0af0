"""NAME-SIZE becomes options; what is wrong with it is said."""

import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.lab.bench.variants import EVERY, parse_variants


def test_the_default_is_every_attention_with_the_sizes_of_table_1():
    variants = parse_variants(EVERY, [])
    assert {v.name for v in variants} == set(ATTENTIONS)
    options = {v.label: ATTENTIONS[v.name].size_option for v in variants}
    sizes = {v.label: v.options.get(options[v.label]) for v in variants}
    assert (sizes["nystrom-32"], sizes["nystrom-64"]) == (32, 64)
    assert (sizes["linformer-256"], sizes["longformer-256"]) == (256, 256)
    assert all(label.endswith(f"-{size}") for label, size in sizes.items() if size)


def test_options_are_those_of_the_config_with_size_and_changes():
    changes = ["nystrom.conv_kernel_size=0", "nystrom.inverse=none"]
    bare, small = parse_variants(["softmax", "nystrom-16"], changes)
    assert bare.options == ATTENTIONS["softmax"].defaults
    changed = {"num_landmarks": 16, "conv_kernel_size": 0, "inverse": "none"}
    assert small.options == {**ATTENTIONS["nystrom"].defaults, **changed}
    attention = small.make(num_heads=2, head_dim=4, max_length=16)
    assert attention.num_landmarks == 16


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        (["flash"], [], "unknown attention 'flash'.*known: nystrom, softmax"),
        (["softmax-64"], [], "sizes are .*nystrom-NUMBER"),
        (["nystrom-many"], [], "sizes are"),
        (["linear", "linear"], [], "linear is there twice"),
        (["nystrom-4"], ["nystrom=3"], "is not ATTENTION.OPTION=VALUE"),
        (["nystrom-4"], ["nystrom.size=3"], "no option 'size'"),
        (["nystrom-4"], ["nystrom.inverse=3"], "must be str"),
        (["nystrom-4"], ["linear.x=3"], "none of the attentions is linear"),
    ],
)
def test_what_is_wrong_is_said(labels, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_variants(labels, changes)


def test_a_size_that_does_not_fit_names_the_attention_and_the_length():
    [variant] = parse_variants(["linformer-64"], [])
    with pytest.raises(ConfigError, match=r"linformer-64 at 32: projection_dim"):
        variant.make(num_heads=1, head_dim=4, max_length=32)
