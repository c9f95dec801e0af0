"""Labels and their options; the compiled passes."""

import json

import jax
import numpy as np
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.linear import LinearAttention
from nystromformer.config import ConfigError
from nystromformer.experiments.bench.attentions import (
    PASSES,
    TABLE_1,
    all_labels,
    attention_programs,
    parse_attention,
)
from tests.tolerance import TOLERANCE, relative_error


def test_all_labels_begin_with_table_1_and_name_every_attention(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", LinearAttention)
    labels = all_labels()
    assert labels[:5] == [*TABLE_1]
    assert {parse_attention(label).name for label in labels} == set(ATTENTIONS)
    assert len(labels) == len(ATTENTIONS) + 1  # nystrom has two
    assert {"mine", "performer-256"} < set(labels)


def test_parse_attention_reads_a_size_and_changes():
    changes = ("nystrom.conv_kernel_size=0", 'nystrom.pinv="exact"', "linear.x=1")
    label, name, options = parse_attention("nystrom-48", changes)
    changed = {"num_landmarks": 48, "conv_kernel_size": 0, "pinv": "exact"}
    assert (label, name) == ("nystrom-48", "nystrom")
    assert options == {**ATTENTIONS["nystrom"].defaults, **changed}
    assert parse_attention("nystrom").options == ATTENTIONS["nystrom"].defaults


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        ("flash", "", "unknown attention 'flash'.*known: .*nystrom"),
        ("softmax-64", "", "no option 'size'"),
        ("nystrom-many", "", "--attention=nystrom-many"),
        ("nystrom-4", "nystrom.pinv=3", "must be str"),
        ("nystrom-4", "nystrom.x=3", "no option 'x'"),
    ],
)
def test_parse_attention_rejects_in_one_line(label, change, message):
    with pytest.raises(ConfigError, match=message) as found:
        parse_attention(label, [change])
    assert "\n" not in str(found.value)


def make_inputs(length):
    """Query, key, value and a cotangent."""
    return [*jax.random.normal(jax.random.key(0), (4, 1, length, 2, 3))]


def test_attention_programs_give_the_output_and_the_gradients_of_all():
    inputs = make_inputs(16)
    forward, both = attention_programs(parse_attention("linformer-4"), inputs)
    output, gradients = both.run()
    np.testing.assert_allclose(forward.run(), output, atol=1e-6)
    # Of the projections, query, key and value.
    assert len(jax.tree.leaves(gradients)) > 3
    assert gradients[1].shape == inputs[0].shape
    # The output is linear in V: <output, cotangent> = <V, its gradient>.
    product = np.vdot(inputs[2], gradients[3])
    assert relative_error(product, np.vdot(output, inputs[3])) <= TOLERANCE["float32"]
    assert [forward.key["what"], both.key["what"]] == [*PASSES]
    assert both.peak_bytes > forward.peak_bytes > 4 * inputs[0].nbytes
    assert json.loads(json.dumps(both.key))["length"] == 16


def test_attention_programs_need_memory_in_proportion_to_the_length():
    spec = parse_attention("nystrom-64")
    short, long = (
        next(attention_programs(spec, make_inputs(n))).peak_bytes
        for n in (8_192, 65_536)
    )
    assert 7 <= long / short <= 8.5
