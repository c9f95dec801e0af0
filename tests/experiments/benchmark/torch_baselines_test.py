"""PyTorch's programs compute the numbers of ours."""

import jax
import pytest

torch = pytest.importorskip("torch", reason="the baselines need torch")
pytest.importorskip("transformers", reason="the baselines need transformers")

from nystromformer.experiments.benchmark import torch_baselines  # noqa: E402
from nystromformer.experiments.benchmark.attentions import (  # noqa: E402
    attention_programs,
    parse_attention,
)
from nystromformer.experiments.benchmark.train_steps import step_groups  # noqa: E402
from tests.tolerance import TOLERANCE, relative_error  # noqa: E402

pytestmark = pytest.mark.parity


def test_attention_baseline_computes_what_ours_does(monkeypatch):
    arrays = []
    grad = torch.autograd.grad

    def record_grad(output, inputs, cotangent):
        gradients = grad(output, inputs, cotangent)
        arrays.extend([output, *gradients])
        return gradients

    monkeypatch.setattr(torch.autograd, "grad", record_grad)
    inputs = list(jax.random.normal(jax.random.key(0), (4, 1, 64, 2, 8)))
    for ours in attention_programs(parse_attention("softmax"), inputs):
        baseline = torch_baselines.attention_baseline(ours, inputs)
        assert baseline.key == {**ours.key, "attention": "torch-softmax"}
        baseline.run()
    output, (_, *gradients) = ours.run()
    for tensor, expected in zip(arrays, [output, *gradients], strict=True):
        array = tensor.detach().numpy().swapaxes(1, 2)
        assert relative_error(array, expected) <= TOLERANCE["float32"]


def test_attention_baseline_stands_beside_softmax_alone():
    inputs = list(jax.random.normal(jax.random.key(0), (4, 1, 64, 2, 8)))
    [nystrom, _] = attention_programs(parse_attention("nystrom-8"), inputs)
    assert torch_baselines.attention_baseline(nystrom, inputs) is None


def test_train_baseline_changes_the_weights_of_a_classifier_of_our_size(monkeypatch):
    weights = []
    adamw = torch.optim.AdamW

    def record_weights(parameters, learning_rate):
        weights.extend(parameters)
        return adamw(weights, learning_rate)

    monkeypatch.setattr(torch.optim, "AdamW", record_weights)
    sizes = {"task.max_length": 60, "train.batch_size": 2}  # theirs is padded to 64
    specs = [parse_attention("nystrom-8")]
    [[ours, theirs]] = step_groups(specs, ["text"], [1], torch_baselines, sizes)
    before = [x.detach().clone() for x in weights]
    theirs.run()
    moved = [bool((x != y).any()) for x, y in zip(weights, before, strict=True)]
    assert sum(moved) >= len(moved) - 4  # without gradient: the pooling of BERT
    assert {(128, 64), (2, 1, 35, 1)} <= {tuple(x.shape) for x in weights}
    assert theirs.key == {**ours.key, "attention": "hf-nystrom-8 + convolution of 35"}
    assert theirs.steps == ours.steps


def test_train_baseline_in_bfloat16_keeps_float32_weights():
    """And its steps run, where transformers' own inverse refuses bfloat16 weights."""
    changes = {
        "task.max_length": 60,
        "train.batch_size": 2,
        "model.dtype": "bfloat16",
    }
    specs = [parse_attention("nystrom-8")]
    [[_, theirs]] = step_groups(specs, ["text"], [1], torch_baselines, changes)
    products = []
    matmul = torch.nn.functional.linear

    def record_dtype(x, weight, bias=None):
        out = matmul(x, weight, bias)
        products.append((weight.dtype, out.dtype))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", record_dtype)
        theirs.run()
    assert set(products) == {(torch.float32, torch.bfloat16)}
