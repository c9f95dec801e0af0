"""The attentions of a benchmark: labels, compiled passes, and cuDNN's beside them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.attention.linear import LinearAttention
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.errors import ConfigError
from nystromformer.experiments.speed import attentions
from nystromformer.experiments.speed.attentions import (
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
from nystromformer.experiments.speed.timing import Program
from tests.tolerance import TOLERANCE, relative_error


def test_list_labels_begins_with_table_1_and_names_every_attention(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, "mine", LinearAttention)
    labels = list_labels()
    assert labels[:8] == list(TABLE_1)
    names = [parse_attention(label).name for label in labels]
    assert set(names) == {*ATTENTIONS, WHOLE_SOFTMAX}
    assert names.count("nystrom") == 4
    assert len(names) == len(set(names)) + 3
    assert {"mine", "performer-256"} < set(labels)


def test_parse_attention_reads_a_size_and_changes():
    label = 'nystrom-48,conv_kernel_size=0,pinv="exact"'
    spec = parse_attention(label)
    changes = {"num_landmarks": 48, "conv_kernel_size": 0, "pinv": "exact"}
    assert spec.label == label
    assert spec.name == "nystrom"
    assert spec.changes == changes
    defaults = find_attention("nystrom").config_defaults()
    assert spec.options == defaults | changes
    assert parse_attention("nystrom").options == defaults


def test_name_row_has_the_changes_of_the_label_and_the_convolution():
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


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("flash", "unknown attention 'flash'.*known: .*nystrom"),
        ("softmax-64", "softmax has no size: take --attention=softmax"),
        ("nystrom-many", "--attention=nystrom-many"),
        ("nystrom-4,pinv=3", "must be str"),
        ("nystrom-4,x=3", "^--attention=nystrom-4,x=3: .* no option 'x'"),
    ],
)
def test_parse_attention_rejects_in_one_line(label, message):
    with pytest.raises(ConfigError, match=message) as raised:
        parse_attention(label)
    assert "\n" not in str(raised.value)


def make_inputs(length, head_dim=3):
    """Query, key, value and a cotangent, of two heads of one sequence."""
    return list(jax.random.normal(jax.random.key(0), (4, 1, length, 2, head_dim)))


def forward_program(label, length, head_dim=3):
    """The first pass alone, since the second takes longer to compile."""
    inputs = make_inputs(length, head_dim)
    forward = next(attentions.make_passes(parse_attention(label), inputs))
    return attentions._compile_pass(forward)


@pytest.fixture(scope="module")
def linformer_programs():
    """The two passes of Linformer, which has parameters of its own."""
    return attention_programs([parse_attention("linformer-4")], make_inputs(16))


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
    forward, forward_and_backward = linformer_programs
    assert forward.key.what == "forward"
    assert forward_and_backward.key.what == "forward+backward"
    assert json.loads(json.dumps(forward.key.to_json()))["length"] == 16
    query, *_ = make_inputs(16)
    assert forward.peak_bytes > 4 * query.nbytes
    assert forward_and_backward.peak_bytes > forward.peak_bytes


def test_attention_groups_time_what_their_keys_say():
    sizes = {"batch_size": 3, "num_heads": 2, "head_dim": 5}
    dtypes = ("float32", "bfloat16")
    (group,) = attention_groups(
        [parse_attention("linear")], [16], **sizes, dtypes=dtypes
    )
    num_bytes = {}
    for dtype, programs in zip(dtypes, (group[:2], group[2:]), strict=True):
        for program in programs:
            key = {**sizes, "length": 16, "dtype": dtype}
            assert program.key.to_json().items() >= key.items()
            assert program.path == "XLA"
        forward, forward_and_backward = programs
        output, (_, *gradients) = forward_and_backward.run()
        for array in (forward.run(), output, *gradients):
            assert array.shape == (3, 16, 2, 5)
            assert array.dtype == dtype
        num_bytes[dtype] = forward.peak_bytes
    assert num_bytes["bfloat16"] < num_bytes["float32"]


def test_attention_groups_end_with_the_baselines_of_our_programs():
    inputs_of_baseline = []

    def library(name, what):
        def make_baseline(program, inputs):
            if program.key.what != what:
                return None
            inputs_of_baseline.append(inputs)
            label = f"{name} {program.key.attention}"
            key = dataclasses.replace(program.key, attention=label)
            return Program(key=key, run=program.run)

        return make_baseline

    specs = [parse_attention("linear"), parse_attention("softmax")]
    (group,) = attention_groups(
        specs,
        [16],
        [library("a", "forward"), library("b", "forward+backward")],
        num_heads=2,
        head_dim=5,
    )

    labels = [program.key.attention for program in group]
    ours = ["linear", "linear", "softmax", "softmax"]
    assert labels == [*ours, "a linear", "a softmax", "b linear", "b softmax"]
    for inputs in inputs_of_baseline:
        assert [array.shape for array in inputs] == [(1, 16, 2, 5)] * 4


def memory_growth(label, length, longer_length, head_dim):
    """How many times the memory the forward pass needs at the longer length."""
    num_bytes = forward_program(label, length, head_dim).peak_bytes
    num_bytes_of_longer = forward_program(label, longer_length, head_dim).peak_bytes
    return num_bytes_of_longer / num_bytes


# memory_test and softmax_groups_test hold the memory of the attentions themselves.
@pytest.mark.slow
def test_attention_programs_need_memory_in_proportion_to_the_length():
    assert 7 <= memory_growth("nystrom-64", 8_192, 65_536, head_dim=3) <= 8.5


def test_whole_softmax_is_exact_attention():
    output = forward_program(WHOLE_SOFTMAX, 64).run()
    expected = forward_program("softmax", 64).run()
    assert relative_error(output, expected) <= TOLERANCE["float32"]


def test_whole_softmax_needs_the_memory_of_all_scores():
    growth = memory_growth(WHOLE_SOFTMAX, 2_048, 8_192, head_dim=32)
    assert growth == pytest.approx(4**2, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("label", ["softmax", "nystrom-64"])
def test_softmax_and_nystrom_need_no_memory_of_all_scores(label):
    assert memory_growth(label, 2_048, 8_192, head_dim=32) < 4.5


def test_nystrom_needs_a_small_part_of_the_memory_of_all_scores():
    num_bytes = forward_program("nystrom-64", 8_192, head_dim=32).peak_bytes
    num_bytes_of_scores = 4 * 2 * 8_192**2  # Two heads have scores in float32.
    assert num_bytes < num_bytes_of_scores / 20


def test_whole_softmax_attends_to_what_the_mask_allows():
    query, key, value, _ = make_inputs(16)
    mask = jnp.arange(16)[None, None, None] < 11
    sizes = {"num_heads": 2, "head_dim": 3, "max_length": 16, "rngs": nnx.Rngs(0)}
    attention = WholeSoftmaxAttention(**sizes)
    output = attention(query, key, value, mask=mask)
    expected = SoftmaxAttention(**sizes)(query, key, value, mask=mask)
    error = relative_error(output[:, :11], expected[:, :11])
    assert error <= TOLERANCE["float32"]
    unmasked_output = attention(query, key, value)
    assert relative_error(unmasked_output[:, :11], expected[:, :11]) > 0.1


def test_cudnn_baseline_is_none_without_cudnn_and_beside_other_attentions(monkeypatch):
    inputs = make_inputs(16)
    softmax = forward_program("softmax", 16)
    assert cudnn_baseline(softmax, inputs) is None
    monkeypatch.setattr(attentions, "can_fuse", lambda *qkv: True)
    nystrom = forward_program("nystrom-8", 16)
    assert cudnn_baseline(nystrom, inputs) is None


def test_cudnn_baseline_stands_beside_softmax_where_there_is_cudnn(monkeypatch):
    """JAX's plain implementation stands in for the kernel."""
    attend = jax.nn.dot_product_attention
    implementations = []

    def attend_plainly(*qkv, implementation):
        implementations.append(implementation)
        return attend(*qkv)

    monkeypatch.setattr(attentions, "can_fuse", lambda *qkv: True)
    monkeypatch.setattr(jax.nn, "dot_product_attention", attend_plainly)
    inputs = make_inputs(16)
    for program in attention_programs([parse_attention("softmax")], inputs):
        baseline = cudnn_baseline(program, inputs)
        assert baseline.key.attention == "cudnn-softmax"
        # Softmax has an empty gradient of its parameters beside these arrays.
        arrays = jax.tree.leaves(baseline.run())
        expected_arrays = jax.tree.leaves(program.run())
        for array, expected in zip(arrays, expected_arrays, strict=True):
            assert relative_error(array, expected) <= TOLERANCE["float32"]
    assert set(implementations) == {"cudnn"}
