"""NAME-SIZE becomes options; what is wrong with it is said."""

import pytest

from nystromformer.attention import ATTENTIONS, register_attention
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.config import ConfigError
from nystromformer.experiments.bench.variants import (
    TABLE_1,
    every_label,
    parse_variants,
)


def test_the_default_is_every_attention_with_the_sizes_of_table_1():
    variants = parse_variants(every_label(), [])
    assert {v.name for v in variants} == set(ATTENTIONS)
    options = {v.label: ATTENTIONS[v.name].size_option for v in variants}
    sizes = {v.label: v.options.get(options[v.label]) for v in variants}
    assert [*sizes][:5] == [*TABLE_1]
    assert (sizes["nystrom-32"], sizes["linformer-256"]) == (32, 256)
    assert all(label.endswith(f"-{size}") for label, size in sizes.items() if size)


def test_an_attention_of_a_users_own_has_its_size(monkeypatch):
    class Mine(SoftmaxAttention):
        size_option = "width"
        defaults = {"width": 5}

        def __init__(self, *, width: int, **sizes):
            super().__init__(**sizes)

    monkeypatch.setattr("nystromformer.attention.ATTENTIONS", table := {**ATTENTIONS})
    monkeypatch.setattr("nystromformer.experiments.bench.variants.ATTENTIONS", table)
    register_attention("my-own", Mine)
    assert every_label()[-1] == "my-own-5"
    changes = ["my-own.width=7", "nystrom.pinv=identity"]
    plain, sized = parse_variants(["my-own", "nystrom-16"], changes)
    assert plain.options == {"width": 7}
    changed = {"num_landmarks": 16, "pinv": "identity"}
    assert sized.options == {**ATTENTIONS["nystrom"].defaults, **changed}
    assert sized.make(2, 4, 16).num_landmarks == 16


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        (["flash"], [], "unknown attention 'flash'.*known: nystrom, softmax"),
        (["softmax-64"], [], "sizes are .*nystrom-NUMBER"),
        (["nystrom-many"], [], "sizes are"),
        (["nystrom-4"], ["nystrom=3"], "is not ATTENTION.OPTION=VALUE"),
        (["nystrom-4"], ["nystrom.pinv=3"], "must be str"),
        (["nystrom-4"], ["linear.x=3"], "none of the attentions is called linear"),
    ],
)
def test_what_is_wrong_is_said(labels, changes, message):
    with pytest.raises(ConfigError, match=message):
        parse_variants(labels, changes)
    [variant] = parse_variants(["linformer-64"], [])
    with pytest.raises(ConfigError, match=r"linformer-64 at 32: projection_dim"):
        variant.make(1, 4, 32)
