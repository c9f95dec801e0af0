"""PyTorch's programs compute what ours do."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="peers need torch")
pytest.importorskip("transformers", reason="peers need transformers")

from nystromformer.attention.nystrom import nystrom_attention  # noqa: E402
from nystromformer.attention.softmax import softmax_attention  # noqa: E402
from nystromformer.config import ConfigError  # noqa: E402
from nystromformer.experiments.bench import peers, train_steps  # noqa: E402
from nystromformer.experiments.bench.programs import attention_program  # noqa: E402
from nystromformer.experiments.bench.variants import parse_variants  # noqa: E402
from nystromformer.experiments.run import Experiment  # noqa: E402
from nystromformer.experiments.study.smooth import smooth_inputs  # noqa: E402
from tests.tolerance import TOLERANCE, relative_error  # noqa: E402

pytestmark = pytest.mark.parity
INPUTS = smooth_inputs(64, num_heads=1, head_dim=8, count=4)


def ours(name, which_pass="forward", changes=()):
    """The key of our program."""
    [variant] = parse_variants([name], changes)
    return attention_program(variant, which_pass, INPUTS).key


def test_a_peer_with_its_gradient_runs_and_is_named_for_its_library():
    for name, theirs in (("softmax", "torch-softmax"), ("nystrom-8", "hf-nystrom-8")):
        key = ours(name, "forward+backward")
        peer = peers.attention_peer(key, INPUTS)
        assert peer.key == {**key, "attention": theirs}
        peer.run()


def test_peers_attend_as_ours_do():
    """One head of one sequence, where both scale the first iterate alike."""
    query, key, value, _ = INPUTS
    tensors = [torch.from_numpy(np.array(x)) for x in (query, key, value)]
    bare = ours("nystrom-8", changes=["nystrom.conv_kernel_size=0"])
    module = peers.self_attention(bare)
    found = peers.attend_with(module, *tensors).reshape(query.shape)
    expected = nystrom_attention(query, key, value, num_landmarks=8)
    assert relative_error(found.detach(), expected) <= TOLERANCE["float32"]
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in tensors)
    )
    expected = softmax_attention(query, key, value)
    assert relative_error(exact.transpose(1, 2), expected) <= TOLERANCE["float32"]


def test_a_gpu_of_jax_alone_is_an_error(monkeypatch):
    key = ours("softmax")
    monkeypatch.setattr(peers.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(peers.torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="JAX has a gpu and PyTorch has none"):
        peers.attention_peer(key, INPUTS)


def test_what_pytorch_has_not_got_has_no_peer():
    ablation = ours("nystrom-8", changes=["nystrom.pinv=identity"])
    for key in (ablation, *map(ours, ("linear", "nystrom-7", "nystrom-64"))):
        assert peers.attention_peer(key, INPUTS) is None


@pytest.mark.parametrize(
    ("name", "theirs", "of_attention"),
    [
        ("nystrom-8", "hf-nystrom-8", {(2, 1, 35, 1)}),
        ("softmax", "torch-softmax", set()),
    ],
)
def test_train_steps_change_the_weights_of_a_classifier_of_our_size(
    name, theirs, of_attention, monkeypatch
):
    made = []
    real = torch.optim.AdamW
    monkeypatch.setattr(
        torch.optim, "AdamW", lambda p, lr: made.extend(p := [*p]) or real(p, lr)
    )
    [variant] = parse_variants([name], [])
    changes = {"max_length": 60, "batch_size": 2}  # nystrom's is padded to 64
    experiment = Experiment.from_config(
        train_steps.task_config("text", variant, changes)
    )
    data = train_steps.made_up_examples(experiment.task, 2)
    program = train_steps.train_program(name, experiment, data)
    peer = program.peer(peers)
    before = [x.detach().clone() for x in made]
    peer.run()
    assert peer.steps == program.steps
    moved = [bool((x != y).any()) for x, y in zip(made, before, strict=True)]
    assert sum(moved) >= len(moved) - 4  # without gradient: the pooling of BERT
    sizes = {tuple(x.shape) for x in made}
    assert {(128, 64)} | of_attention <= sizes
    assert peer.key == {**program.key, "attention": theirs}


def test_exact_attention_of_a_train_step_is_ours_between_its_projections():
    torch.manual_seed(0)
    theirs = peers.self_attention({**ours("nystrom-8"), "num_heads": 2})
    hidden = torch.randn(1, 64, 16)
    (found,) = peers.exact_forward(theirs.eval(), 0.5, hidden)
    qkv = [
        project(hidden).detach().numpy().reshape(1, 64, 2, 8)
        for project in (theirs.query, theirs.key, theirs.value)
    ]
    expected = softmax_attention(*qkv).reshape(1, 64, 16)
    assert relative_error(found.detach(), expected) <= TOLERANCE["float32"]
    (dropped,) = peers.exact_forward(theirs.train(), 0.5, hidden)
    assert relative_error(dropped.detach(), expected) > 0.1
