"""PyTorch's programs compute the numbers of ours."""

import dataclasses

import jax
import pytest

torch = pytest.importorskip("torch", reason="the baselines need torch")
pytest.importorskip("transformers", reason="the baselines need transformers")

from nystromformer.experiments.speed import torch_baselines  # noqa: E402
from nystromformer.experiments.speed.attentions import (  # noqa: E402
    attention_programs,
    parse_attention,
)
from nystromformer.experiments.speed.train_steps import step_groups  # noqa: E402
from tests.tolerance import TOLERANCE, relative_error  # noqa: E402

pytestmark = pytest.mark.parity


def make_inputs():
    """Query, key, value and a cotangent."""
    return list(jax.random.normal(jax.random.key(0), (4, 1, 64, 2, 8)))


def test_attention_baseline_computes_what_ours_does(monkeypatch):
    arrays = []
    grad = torch.autograd.grad

    def record_grad(output, inputs, cotangent):
        gradients = grad(output, inputs, cotangent)
        arrays.extend([output, *gradients])
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", record_grad)
    inputs = make_inputs()
    forward, forward_and_backward = attention_programs(
        [parse_attention("softmax")], inputs
    )
    for program in (forward, forward_and_backward):
        baseline = torch_baselines.attention_baseline(program, inputs)
        assert baseline.key == dataclasses.replace(
            program.key, attention="torch-softmax"
        )
        baseline.run()

    output, (_, *gradients) = forward_and_backward.run()
    for tensor, expected in zip(arrays, [output, *gradients], strict=True):
        array = tensor.detach().numpy().swapaxes(1, 2)
        assert relative_error(array, expected) <= TOLERANCE["float32"]


def test_attention_baseline_stands_beside_softmax_alone():
    inputs = make_inputs()
    nystrom, _ = attention_programs([parse_attention("nystrom-8")], inputs)
    assert torch_baselines.attention_baseline(nystrom, inputs) is None


def make_step_programs(dtype):
    """Our train steps on texts, and theirs, which are padded from 60 tokens to 64."""
    (group,) = step_groups(
        [parse_attention("nystrom-8")],
        tasks=["text"],
        part_counts=[1],
        baselines=[torch_baselines.train_baseline],
        changes={
            "task.max_length": 60,
            "train.batch_size": 2,
            "model.dtype": dtype,
        },
    )
    return group


def test_train_baseline_changes_the_weights_of_a_classifier_of_our_size(monkeypatch):
    weights = []
    adamw = torch.optim.AdamW

    def record_weights(parameters, learning_rate):
        weights.extend(parameters)
        return adamw(weights, learning_rate)

    monkeypatch.setattr(torch.optim, "AdamW", record_weights)
    program, baseline = make_step_programs("float32")
    assert baseline.key == dataclasses.replace(
        program.key, attention="hf-nystrom-8 + convolution of 35"
    )
    assert baseline.steps == program.steps

    initial_weights = [weight.detach().clone() for weight in weights]
    baseline.run()
    num_changed = 0
    for weight, initial_weight in zip(weights, initial_weights, strict=True):
        num_changed += bool((weight != initial_weight).any())
    # The pooling of BERT has no gradient.
    assert num_changed >= len(weights) - 4
    shapes = {tuple(weight.shape) for weight in weights}
    assert {(128, 64), (2, 1, 35, 1)} <= shapes


def test_train_baseline_in_bfloat16_keeps_float32_weights(monkeypatch):
    """Its steps run, where transformers' own inverse refuses bfloat16 weights."""
    _, baseline = make_step_programs("bfloat16")
    dtypes = set()
    linear = torch.nn.functional.linear

    def record_dtypes(x, weight, bias=None):
        output = linear(x, weight, bias)
        dtypes.add((weight.dtype, output.dtype))
        return output

    monkeypatch.setattr(torch.nn.functional, "linear", record_dtypes)
    baseline.run()
    assert dtypes == {(torch.float32, torch.bfloat16)}
