"""Labels and their options; the compiled passes."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.linear import LinearAttention
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark import attentions
from nystromformer.experiments.benchmark.attentions import (
    PASSES,
    TABLE_1,
    WHOLE_SOFTMAX,
    WholeSoftmaxAttention,
    attention_groups,
    attention_programs,
    cudnn_baseline,
    list_labels,
    name_row,
    parse_attention,
)
from tests.tolerance import TOLERANCE, relative_error


def test_list_labels_begins_with_table_1_and_name_every_attention(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", LinearAttention)
    labels = list_labels()
    assert labels[:8] == list(TABLE_1)
    names = {parse_attention(label).name for label in labels}
    assert names == {*ATTENTIONS, WHOLE_SOFTMAX}
    assert len(labels) == len(names) + 3  # nystrom has four
    assert {"mine", "performer-256"} < set(labels)


def test_parse_attention_reads_a_size_and_changes():
    changes = ("nystrom.conv_kernel_size=0", 'nystrom.pinv="exact"', "linear.x=1")
    spec = parse_attention("nystrom-48", changes)
    changed = {"num_landmarks": 48, "conv_kernel_size": 0, "pinv": "exact"}
    assert (spec.label, spec.name) == ("nystrom-48", "nystrom")
    assert spec.changes == changed
    assert spec.options == {**ATTENTIONS["nystrom"].config_defaults(), **changed}
    assert parse_attention("nystrom").options == ATTENTIONS["nystrom"].config_defaults()


def test_name_row_says_what_is_changed_in_it_and_the_convolution():
    rows = {
        "nystrom-64": "nystrom-64 + convolution of 35",
        "nystrom-64,conv_kernel_size=0": "nystrom-64",
        "nystrom-64,pinv=exact,conv_kernel_size=5": (
            "nystrom-64, pinv=exact + convolution of 5"
        ),
        "linformer-256": "linformer-256",
    }
    for label, row in rows.items():
        assert name_row(label, parse_attention(label).options) == row
    own = parse_attention("nystrom-64,conv_kernel_size=0", ["nystrom.pinv=exact"])
    assert own.options["conv_kernel_size"] == 0
    assert own.options["pinv"] == "exact"


@pytest.mark.parametrize(
    ("label", "change", "message"),
    [
        ("flash", "", "unknown attention 'flash'.*known: .*nystrom"),
        ("softmax-64", "", "softmax has no size: take --attention=softmax"),
        ("nystrom-many", "", "--attention=nystrom-many"),
        ("nystrom-4", "nystrom.pinv=3", "must be str"),
        ("nystrom-4", "nystrom.x=3", "no option 'x'"),
        ("nystrom-4,x=3", "", "no option 'x'"),
    ],
)
def test_parse_attention_rejects_in_one_line(label, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_attention(label, [change])
    assert "\n" not in str(caught.value)


def make_inputs(length, head_dim=3):
    """Query, key, value and a cotangent."""
    return list(jax.random.normal(jax.random.key(0), (4, 1, length, 2, head_dim)))


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


def test_whole_softmax_is_exact_attention_in_memory_of_all_scores():
    """At four times the length it needs 16 times the memory, and the others 4 times."""
    outputs = {}
    for name in (WHOLE_SOFTMAX, "softmax"):
        [forward, _] = attention_programs(parse_attention(name), make_inputs(64))
        outputs[name] = forward.run()
    error = relative_error(outputs[WHOLE_SOFTMAX], outputs["softmax"])
    assert error <= TOLERANCE["float32"]

    factors = {}
    for label in (WHOLE_SOFTMAX, "softmax", "nystrom-64"):
        spec = parse_attention(label)
        short, long = (
            next(attention_programs(spec, make_inputs(length, head_dim=32))).peak_bytes
            for length in (2_048, 8_192)
        )
        factors[label] = long / short
    assert factors.pop(WHOLE_SOFTMAX) == pytest.approx(16, rel=0.05)
    assert max(factors.values()) < 4.5
    num_bytes_of_scores = 4 * 2 * 8_192**2  # float32, of two heads
    assert long < num_bytes_of_scores / 20


def test_whole_softmax_attends_to_what_the_mask_allows():
    query, key, value, _ = make_inputs(16)
    mask = jnp.arange(16)[None, None, None] < 11
    sizes = {"num_heads": 2, "head_dim": 3, "max_length": 16, "rngs": nnx.Rngs(0)}
    out = WholeSoftmaxAttention(**sizes)(query, key, value, mask=mask)
    expected = SoftmaxAttention(**sizes)(query, key, value, mask=mask)
    error = relative_error(out[:, :11], expected[:, :11])
    assert error <= TOLERANCE["float32"]
    unmasked = WholeSoftmaxAttention(**sizes)(query, key, value)
    assert relative_error(unmasked[:, :11], expected[:, :11]) > 0.1


def test_cudnn_baseline_stands_beside_softmax_where_there_is_cudnn(monkeypatch):
    """JAX's plain implementation stands in for the kernel."""
    inputs = make_inputs(16)
    programs = list(attention_programs(parse_attention("softmax"), inputs))
    assert [cudnn_baseline(program, inputs) for program in programs] == [None, None]

    attend = jax.nn.dot_product_attention
    implementations = []

    def attend_plainly(*qkv, implementation):
        implementations.append(implementation)
        return attend(*qkv)

    monkeypatch.setattr(attentions, "can_fuse", lambda *qkv: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", attend_plainly)
    for ours in programs:
        theirs = cudnn_baseline(ours, inputs)
        assert theirs.key["attention"] == "cudnn-softmax"
        expected = jax.tree.leaves(ours.run())
        for array, expected_array in zip(
            jax.tree.leaves(theirs.run()), expected, strict=True
        ):
            assert relative_error(array, expected_array) <= TOLERANCE["float32"]
    assert set(implementations) == {"cudnn"}

    [nystrom, _] = attention_programs(parse_attention("nystrom-8"), inputs)
    assert cudnn_baseline(nystrom, inputs) is None
