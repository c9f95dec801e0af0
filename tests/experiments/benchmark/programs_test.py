"""Labels and their options; the compiled passes; steps of a task's config."""

import json

import jax
import numpy as np
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.linear import LinearAttention
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.programs import (
    PASSES,
    STEPS,
    TABLE_1,
    all_labels,
    attention_groups,
    attention_programs,
    parse_attention,
    step_groups,
    synthetic_examples,
)
from nystromformer.experiments.experiment import Experiment
from tests.small import make_config
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
    assert options == {**ATTENTIONS["nystrom"].config_defaults(), **changed}
    assert parse_attention("nystrom").options == ATTENTIONS["nystrom"].config_defaults()


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


def test_attention_groups_time_what_their_keys_say():
    sizes = {"batch_size": 3, "num_heads": 2, "head_dim": 5}
    bytes_of = {}
    for dtype in ("float32", "bfloat16"):
        specs = [parse_attention("linear")]
        [[forward, both]] = attention_groups(specs, [16], **sizes, dtype=dtype)
        output, (_, *gradients) = both.run()
        for x in (forward.run(), output, *gradients):
            assert (x.shape, x.dtype) == ((3, 16, 2, 5), dtype)
        for program in (forward, both):
            key = {**sizes, "length": 16, "dtype": dtype}
            assert program.key.items() >= key.items()
        bytes_of[dtype] = forward.peak_bytes
    assert bytes_of["bfloat16"] < bytes_of["float32"]


def test_attention_programs_need_memory_in_proportion_to_the_length():
    spec = parse_attention("nystrom-64")
    programs = [attention_programs(spec, make_inputs(n)) for n in (8_192, 65_536)]
    short, long = (next(x).peak_bytes for x in programs)
    assert 7 <= long / short <= 8.5


@pytest.mark.slow
def test_step_groups_take_all_steps_and_continue(monkeypatch):
    sizes = {"task.max_length": 16, "train.batch_size": 2, "model.dtype": "bfloat16"}
    sizes |= {"model.num_layers": 1, "model.mlp_dim": None}
    specs = [parse_attention(label) for label in ("linear", "linformer-4")]
    [programs] = step_groups(specs, ["text"], (1, 2), **sizes)
    labels = [program.key["attention"] for program in programs]
    assert labels == ["linear", "linear in 2", "linformer-4", "linformer-4 in 2"]
    states, real = [], jax.block_until_ready
    monkeypatch.setattr(
        jax, "block_until_ready", lambda s: states.append(int(s.step)) or real(s)
    )
    programs[1].run()
    programs[1].run()
    assert states == [STEPS, 2 * STEPS]
    assert programs[1].steps == STEPS
    key = programs[2].key
    assert (key["what"], key["task"], key["length"]) == ("train step", "text", 16)
    assert key["options"]["projection_dim"] == 4
    assert (key["batch_size"], key["dtype"]) == (2, "bfloat16")


def test_synthetic_examples_have_the_shapes_of_the_task():
    task = Experiment(make_config("linear", "retrieval")).task
    data = synthetic_examples(task, 3)
    assert data.inputs.shape == (STEPS * 6, task.max_length)
    assert data.pairs.shape == (STEPS * 3, 2)
    assert 0 < data.inputs.min() <= data.inputs.max() < task.vocab_size
    assert task.max_length / 2 <= data.lengths.min() < data.lengths.max()
    pictures = synthetic_examples(Experiment(make_config("linear", "image")).task, 3)
    assert pictures.pairs is pictures.lengths is None  # and so without a mask
