"""The same work in PyTorch, timed beside ours: each gets the numbers that ours gets."""

# pyright: reportMissingImports=false
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
import transformers
from transformers.models.nystromformer.modeling_nystromformer import (
    NystromformerForSequenceClassification,
    NystromformerSelfAttention,
)

from nystromformer.config import Config
from nystromformer.experiments.bench.measure import Program
from nystromformer.experiments.bench.train_steps import STEPS
from nystromformer.training.data import Data

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PUBLISHED = {"landmarks": "segment_means", "pinv": "iterative", "num_pinv_iters": 6}
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


def attention_baseline(ours: Program, inputs: Sequence[jax.Array]) -> Program | None:
    """torch's exact attention, or transformers' Nyström attention; None for others.

    transformers' has no projections here, wants a length that is a multiple of the
    landmarks, and takes as many landmarks as tokens for exact attention.
    """
    key, options = ours.key, ours.key["options"]
    length, count = key["length"], options.get("num_landmarks", 0)
    dtype, parameters = getattr(torch, key["dtype"]), []
    # Through float32, as numpy has no bfloat16: [B, L, N, H].
    tensors = [torch.tensor(np.array(x, np.float32)).to(DEVICE, dtype) for x in inputs]
    if key["attention"] == "softmax":
        tensors = [x.transpose(1, 2).contiguous() for x in tensors]  # [B, N, L, H]
        attend: Any = torch.nn.functional.scaled_dot_product_attention
    elif options.items() >= PUBLISHED.items() and count < length and not length % count:
        sizes = {"num_attention_heads": key["num_heads"]}
        sizes["hidden_size"] = key["num_heads"] * key["head_dim"]
        module = _make(NystromformerSelfAttention, options, length, **sizes)
        module = module.to(dtype).eval()
        parameters = [x for x in module.parameters() if x.ndim == 4]  # convolution
        attend = functools.partial(_attend, module)
    else:
        return None
    *qkv, cotangent = tensors

    def forward() -> None:
        with torch.no_grad():
            attend(*qkv)

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in qkv]
        output = attend(*leaves)
        cotangents = cotangent.reshape(output.shape)
        torch.autograd.grad(output, [*leaves, *parameters], cotangents)

    return _program(ours, forward if key["what"] == "forward" else both)


def train_baseline(ours: Program, config: Config, data: Data) -> Program | None:
    """Train steps of transformers' classifier of the sizes of ours; None for others.

    Its length is the next multiple of the landmarks. Nothing is masked: with a padding
    mask the classifier of transformers 5 raises an error. It takes a batch whole.
    """
    options, model, rate = config.attention.options, config.model, config.optimizer
    published = options.items() >= PUBLISHED.items() and data.pairs is None
    if config.train.grad_accum_steps > 1 or not published:
        return None
    rows = np.asarray(data.inputs, np.int64)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % options["num_landmarks"])))
    classifier = _make(
        *(NystromformerForSequenceClassification, options, rows.shape[1]),
        vocab_size=int(rows.max()) + 1,
        hidden_size=model.model_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.mlp_dim,
        hidden_dropout_prob=model.dropout_rate,
        num_labels=int(data.labels.max()) + 1,
    ).to(getattr(torch, model.dtype))
    optimizer = torch.optim.AdamW(classifier.parameters(), rate.learning_rate)
    inputs, labels = (
        torch.tensor(x).to(DEVICE) for x in (rows, np.asarray(data.labels, np.int64))
    )
    batches = [*zip(inputs.chunk(STEPS), labels.chunk(STEPS), strict=True)]

    def run() -> None:
        for batch, wanted in batches:
            optimizer.zero_grad()
            classifier(batch, labels=wanted).loss.backward()
            optimizer.step()

    return _program(ours, run)


def _make(cls: Any, options: Mapping[str, Any], length: int, **sizes: Any) -> Any:
    """A module of transformers, without the convolution if ours has none."""
    torch.manual_seed(0)
    kernel = options["conv_kernel_size"]
    sizes |= {
        "num_landmarks": options["num_landmarks"],
        "conv_kernel_size": kernel or 1,
    }
    sizes |= {"segment_means_seq_len": length, "max_position_embeddings": length}
    model = cls(transformers.NystromformerConfig(**sizes))
    for module in model.modules():
        if hasattr(module, "conv") and not kernel:
            module.conv_kernel_size = None
            del module.conv
    return model.to(DEVICE).train()


def _attend(module: Any, *qkv: Any) -> Any:
    """transformers' attention of queries, keys and values [B, L, N, H]."""
    for layer, x in zip((module.query, module.key, module.value), qkv, strict=True):
        layer.forward = lambda hidden, x=x: x.flatten(2)
    return module(qkv[0].flatten(2))[0]


def _program(ours: Program, run: Callable[[], None]) -> Program:
    """Named after ours; a GPU is waited for."""

    def run_and_wait() -> None:
        run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    label = ours.key["attention"]
    label = f"torch-{label}" if label == "softmax" else f"hf-{label}"
    return Program({**ours.key, "attention": label}, run_and_wait, None, ours.steps)
