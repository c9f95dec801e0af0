"""The same attentions and train steps in PyTorch.

Nyström attention is that of transformers, without its projections; exact attention is
torch's scaled_dot_product_attention. Each gets the numbers that ours gets.
"""

# pyright: reportMissingImports=false
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
import transformers
from transformers.models.nystromformer.modeling_nystromformer import (
    NystromformerConfig,
    NystromformerForSequenceClassification,
    NystromformerSelfAttention,
)

from nystromformer.config import Config, ConfigError
from nystromformer.experiments.bench.programs import Program
from nystromformer.experiments.bench.train_steps import STEPS
from nystromformer.training.data import Data

PUBLISHED = {"landmarks": "segment_means", "pinv": "iterative", "num_pinv_iters": 6}

attend_exactly = torch.nn.functional.scaled_dot_product_attention


def versions() -> dict[str, str]:
    """The versions of the libraries that the peers come from."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


def attention_peer(key: dict[str, Any], inputs: Sequence[jax.Array]) -> Program | None:
    """PyTorch's version of the attention of our program of that key, or None.

    transformers has the published options, and wants a length that is a multiple of
    the landmarks; as many landmarks as tokens make it exact attention.
    """
    options, length = key["options"], key["length"]
    tensors = [_tensor(x) for x in inputs]  # [B, L, N, H]
    family = key["attention"].partition("-")[0]
    if family == "softmax":
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]  # [B, N, L, H]
        attend, weights, name = attend_exactly, [], "torch-softmax"
    elif family == "nystrom" and PUBLISHED.items() <= options.items():
        if length % options["num_landmarks"] or length == options["num_landmarks"]:
            return None
        module = self_attention(key)
        attend, name = functools.partial(attend_with, module), f"hf-{key['attention']}"
        weights = [module.conv.weight] if options["conv_kernel_size"] else []
    else:
        return None
    *qkv, cotangent = tensors

    def run() -> None:
        if key["what"] == "forward":
            with torch.no_grad():
                attend(*qkv)
        else:
            leaves = [x.detach().requires_grad_() for x in qkv]
            output = attend(*leaves)
            cotangents = cotangent.reshape(output.shape)
            torch.autograd.grad(output, [*leaves, *weights], cotangents)

    return _program({**key, "attention": name}, run)


def train_peer(key: dict[str, Any], config: Config, data: Data) -> Program | None:
    """Train steps of transformers' classifier of the same sizes, or None.

    Its length is the next multiple of the landmarks. Nothing is masked: with a padding
    mask the classifier of transformers 5 raises an error. It takes a batch whole.
    """
    options, name = config.attention.options, config.attention.name
    published = name == "nystrom" and PUBLISHED.items() <= options.items()
    whole = config.train.grad_accum_steps == 1 and data.pairs is None
    if not whole or not (published or name == "softmax"):
        return None
    num_landmarks = options.get("num_landmarks", 1)
    length = -(-data.inputs.shape[1] // num_landmarks) * num_landmarks
    theirs = classifier(config, data, length)
    optimizer = torch.optim.AdamW(theirs.parameters(), config.optimizer.learning_rate)
    rows = np.zeros((len(data.inputs), length), np.int64)
    rows[:, : data.inputs.shape[1]] = np.asarray(data.inputs)
    inputs, labels = _tensor(rows), _tensor(np.asarray(data.labels, np.int64))
    batches = [*zip(inputs.chunk(STEPS), labels.chunk(STEPS), strict=True)]

    def run() -> None:
        for batch, wanted in batches:
            optimizer.zero_grad()
            theirs(batch, labels=wanted).loss.backward()
            optimizer.step()

    library = "torch" if name == "softmax" else "hf"
    return _program({**key, "attention": f"{library}-{key['attention']}"}, run, STEPS)


def classifier(config: Config, data: Data, length: int) -> Any:
    """The model of transformers; for softmax with torch's attention and our dropout."""
    model, options = config.model, config.attention.options
    torch.manual_seed(0)
    theirs = NystromformerForSequenceClassification(
        NystromformerConfig(
            vocab_size=int(data.inputs.max()) + 1,
            hidden_size=model.model_dim,
            num_hidden_layers=model.num_layers,
            num_attention_heads=model.num_heads,
            intermediate_size=model.mlp_dim,
            hidden_dropout_prob=model.dropout_rate,
            num_landmarks=options.get("num_landmarks", 1),
            segment_means_seq_len=length,
            max_position_embeddings=length,
            conv_kernel_size=options.get("conv_kernel_size") or 1,
            num_labels=int(data.labels.max()) + 1,
        )
    )
    for module in _drop_convolution(theirs, options):
        if config.attention.name == "softmax":
            rate = options["dropout_rate"]
            module.forward = functools.partial(exact_forward, module, rate)
    return theirs.to(_device(), getattr(torch, model.dtype))


def exact_forward(theirs: Any, dropout_rate: float, hidden: Any, *_: Any) -> tuple:
    """torch's attention between the projections of one of transformers'."""
    qkv = (
        project(hidden).unflatten(2, (theirs.num_attention_heads, -1)).transpose(1, 2)
        for project in (theirs.query, theirs.key, theirs.value)
    )
    context = attend_exactly(*qkv, dropout_p=dropout_rate if theirs.training else 0.0)
    return (context.transpose(1, 2).flatten(2),)


def self_attention(key: dict[str, Any]) -> Any:
    """transformers' module, to be called by `attend_with`."""
    torch.manual_seed(0)
    module = NystromformerSelfAttention(
        NystromformerConfig(
            hidden_size=key["num_heads"] * key["head_dim"],
            num_attention_heads=key["num_heads"],
            num_landmarks=key["options"]["num_landmarks"],
            segment_means_seq_len=key["length"],
            conv_kernel_size=key["options"]["conv_kernel_size"] or 1,
        )
    )
    _drop_convolution(module, key["options"])
    return module.to(_device(), getattr(torch, key["dtype"])).eval()


def attend_with(module: Any, *qkv: Any) -> Any:
    """The module on queries, keys and values [B, L, N, H] instead of their sources."""
    for project, x in zip((module.query, module.key, module.value), qkv, strict=True):
        project.forward = lambda hidden, x=x: x.flatten(2)
    return module(qkv[0].flatten(2))[0]


def _drop_convolution(model: Any, options: Mapping[str, Any]) -> list[Any]:
    """Its attentions, without a convolution if ours has none."""
    found = [x for x in model.modules() if isinstance(x, NystromformerSelfAttention)]
    for module in found if not options.get("conv_kernel_size") else ():
        module.conv_kernel_size = None
        del module.conv
    return found


def _device() -> str:
    """torch's device, of the same kind as JAX's; else ConfigError."""
    if torch.cuda.is_available():
        return "cuda"
    if jax.default_backend() != "cpu":
        raise ConfigError(
            f"--peers: JAX has a {jax.default_backend()} and PyTorch has none: install "
            "PyTorch for it, or leave the peers out"
        )
    return "cpu"


def _tensor(x: Any) -> Any:
    """A copy on torch's device; by way of float32, for numpy has no bfloat16."""
    if x.dtype.kind in "iu":
        return torch.from_numpy(np.array(x)).to(_device())
    tensor = torch.from_numpy(np.array(x, np.float32))
    return tensor.to(_device(), getattr(torch, str(x.dtype)))


def _program(key: dict[str, Any], run: Callable[[], Any], steps: int = 1) -> Program:
    """Waits for a GPU at the end of a run, and measures memory by torch's counter."""
    if not torch.cuda.is_available():
        return Program(key, run, steps=steps)

    def run_and_wait() -> None:
        run()
        torch.cuda.synchronize()

    def peak(run: Callable[[], Any]) -> int:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before

    return Program(key, run_and_wait, steps=steps, measured_peak=peak)
