"""PyTorch's programs compute the numbers of ours."""

import jax
import pytest

torch = pytest.importorskip("torch", reason="the baselines need torch")
pytest.importorskip("transformers", reason="the baselines need transformers")

from nystromformer.experiments.benchmark import torch_baselines  # noqa: E402
from nystromformer.experiments.benchmark.programs import (  # noqa: E402
    attention_programs,
    parse_attention,
    step_groups,
)
from tests.tolerance import TOLERANCE, relative_error  # noqa: E402

pytestmark = pytest.mark.parity


def test_attention_baseline_computes_what_ours_does(monkeypatch):
    found, grad = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd, "grad", lambda y, x, g: found.extend([y, *grad(y, x, g)])
    )
    inputs = [*jax.random.normal(jax.random.key(0), (4, 1, 64, 2, 8))]
    for ours in attention_programs(parse_attention("softmax"), inputs):
        theirs = torch_baselines.attention_baseline(ours, inputs)
        assert theirs.key == {**ours.key, "attention": "torch-softmax"}
        theirs.run()
    output, (_, *gradients) = ours.run()
    for x, expected in zip(found, [output, *gradients], strict=True):
        x = x.detach().numpy().swapaxes(1, 2)
        assert relative_error(x, expected) <= TOLERANCE["float32"]
    [nystrom, _] = attention_programs(parse_attention("nystrom-8"), inputs)
    assert torch_baselines.attention_baseline(nystrom, inputs) is None


def test_train_baseline_changes_the_weights_of_a_classifier_of_our_size(monkeypatch):
    made, real = [], torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda p, lr: made.extend(p := [*p]) or real(p, lr)
    )
    sizes = {"task.max_length": 60, "train.batch_size": 2}  # theirs is padded to 64
    specs = [parse_attention("nystrom-8")]
    [[ours, theirs]] = step_groups(specs, ["text"], [1], torch_baselines, **sizes)
    before = [x.detach().clone() for x in made]
    theirs.run()
    moved = [bool((x != y).any()) for x, y in zip(made, before, strict=True)]
    assert sum(moved) >= len(moved) - 4  # without gradient: the pooling of BERT
    assert {(128, 64), (2, 1, 35, 1)} <= {tuple(x.shape) for x in made}
    assert theirs.key == {**ours.key, "attention": "hf-nystrom-8"}
    assert theirs.steps == ours.steps
