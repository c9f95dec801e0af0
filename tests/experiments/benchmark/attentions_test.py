"""Labels and their options; the compiled passes."""

import json

import jax
import numpy as np
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.linear import LinearAttention
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.attentions import (
    PASSES,
    TABLE_1,
    attention_groups,
    attention_programs,
    list_labels,
    parse_attention,
)
from tests.tolerance import TOLERANCE, relative_error


def test_list_labels_begins_with_table_1_and_name_every_attention(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", LinearAttention)
    labels = list_labels()
    assert labels[:5] == list(TABLE_1)
    assert {parse_attention(label).name for label in labels} == set(ATTENTIONS)
    assert len(labels) == len(ATTENTIONS) + 1  # nystrom has two
    assert {"mine", "performer-256"} < set(labels)


def test_parse_attention_reads_a_size_and_changes():
    changes = ("nystrom.conv_kernel_size=0", 'nystrom.pinv="exact"', "linear.x=1")
    spec = parse_attention("nystrom-48", changes)
    changed = {"num_landmarks": 48, "conv_kernel_size": 0, "pinv": "exact"}
    assert (spec.label, spec.name) == ("nystrom-48", "nystrom")
    assert spec.changes == changed
    assert spec.options == {**ATTENTIONS["nystrom"].config_defaults(), **changed}
    assert parse_attention("nystrom").options == ATTENTIONS["nystrom"].config_defaults()


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        ("flash", "", "unknown attention 'flash'.*known: .*nystrom"),
        ("softmax-64", "", "softmax has no size: take --attention=softmax"),
        ("nystrom-many", "", "--attention=nystrom-many"),
        ("nystrom-4", "nystrom.pinv=3", "must be str"),
        ("nystrom-4", "nystrom.x=3", "no option 'x'"),
    ],
)
def test_parse_attention_rejects_in_one_line(label, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_attention(label, [change])
    assert "\n" not in str(caught.value)


def make_inputs(length):
    """Query, key, value and a cotangent."""
    return list(jax.random.normal(jax.random.key(0), (4, 1, length, 2, 3)))


@pytest.fixture(scope="module")
def linformer_programs():
    """The two passes of Linformer, which has parameters of its own."""
    return list(attention_programs(parse_attention("linformer-4"), make_inputs(16)))


def test_attention_programs_give_the_output_and_the_gradients_of_all(
    linformer_programs,
):
    query, _, value, cotangent = make_inputs(16)
    forward, forward_and_backward = linformer_programs
    output, gradients = forward_and_backward.run()
    np.testing.assert_allclose(forward.run(), output, atol=1e-6)
    # The projections have gradients, and so have query, key and value.
    assert len(jax.tree.leaves(gradients)) > 3
    _, query_gradient, _, value_gradient = gradients
    assert query_gradient.shape == query.shape
    # The output is linear in V: <output, cotangent> = <V, its gradient>.
    product = np.vdot(value, value_gradient)
    assert relative_error(product, np.vdot(output, cotangent)) <= TOLERANCE["float32"]


def test_attention_programs_have_their_keys_and_memory(linformer_programs):
    forward, both = linformer_programs
    assert [forward.key["what"], both.key["what"]] == list(PASSES)
    assert both.peak_bytes > forward.peak_bytes > 4 * make_inputs(16)[0].nbytes
    assert json.loads(json.dumps(both.key))["length"] == 16


def test_attention_groups_time_what_their_keys_say():
    sizes = {"batch_size": 3, "num_heads": 2, "head_dim": 5}
    specs = [parse_attention("linear")]
    forward_bytes = {}
    for dtype in ("float32", "bfloat16"):
        [[forward, both]] = attention_groups(specs, [16], **sizes, dtype=dtype)
        output, (_, *gradients) = both.run()
        for array in (forward.run(), output, *gradients):
            assert (array.shape, array.dtype) == ((3, 16, 2, 5), dtype)
        for program in (forward, both):
            key = {**sizes, "length": 16, "dtype": dtype}
            assert program.key.items() >= key.items()
        forward_bytes[dtype] = forward.peak_bytes
    assert forward_bytes["bfloat16"] < forward_bytes["float32"]


def test_attention_programs_need_memory_in_proportion_to_the_length():
    spec = parse_attention("nystrom-64")
    programs = [attention_programs(spec, make_inputs(n)) for n in (8_192, 65_536)]
    short, long = (next(x).peak_bytes for x in programs)
    assert 7 <= long / short <= 8.5
