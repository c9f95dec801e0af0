"""The same work in PyTorch, timed beside ours: each gets the numbers that ours gets."""

# pyright: reportMissingImports=false
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
import transformers

from nystromformer.config import Config
from nystromformer.experiments.benchmark.programs import STEPS, Program
from nystromformer.training.data import DeviceRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as jax takes
PUBLISHED = {"landmarks": "segment_means", "pinv": "iterative", "num_pinv_iters": 6}
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


def attention_baseline(ours: Program, inputs: Sequence[jax.Array]) -> Program | None:
    """torch's exact attention beside softmax; None beside others."""
    if ours.key["attention"] != "softmax":
        return None
    # Through float32, as numpy has no bfloat16: [B, L, N, H] -> [B, N, L, H].
    arrays = (np.array(x, np.float32).swapaxes(1, 2) for x in inputs)
    dtype = getattr(torch, ours.key["dtype"])
    *qkv, cotangent = (torch.tensor(x).to(DEVICE, dtype) for x in arrays)
    attend: Any = torch.nn.functional.scaled_dot_product_attention

    def forward() -> None:
        with torch.no_grad():
            attend(*qkv)

    def both() -> None:
        leaves = [x.detach().requires_grad_() for x in qkv]
        torch.autograd.grad(attend(*leaves), leaves, cotangent)

    return _program("torch", ours, forward if ours.key["what"] == "forward" else both)


def train_baseline(ours: Program, config: Config, data: DeviceRows) -> Program | None:
    """Train steps of transformers' classifier of the sizes of ours; None for others.

    Its length is the next multiple of the landmarks. Nothing is masked: with a mask the
    classifier of transformers 5 raises an error. It has a convolution and no parts.
    """
    options, model, rate = config.attention.options, config.model, config.optimizer
    published = options.items() >= PUBLISHED.items() and options["conv_kernel_size"]
    if config.train.grad_accum_steps > 1 or data.pairs is not None or not published:
        return None
    rows = np.asarray(data.inputs, np.int64)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % options["num_landmarks"])))
    make_config: Any = transformers.NystromformerConfig
    sizes = make_config(
        vocab_size=int(rows.max()) + 1,
        hidden_size=model.model_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.mlp_dim,
        hidden_dropout_prob=model.dropout_rate,
        num_labels=int(data.labels.max()) + 1,
        num_landmarks=options["num_landmarks"],
        conv_kernel_size=options["conv_kernel_size"],
        segment_means_seq_len=rows.shape[1],
        max_position_embeddings=rows.shape[1],
    )
    torch.manual_seed(0)
    classifier: Any = transformers.NystromformerForSequenceClassification(sizes)
    classifier = classifier.to(DEVICE, getattr(torch, model.dtype)).train()
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

    return _program("hf", ours, run)


def _program(library: str, ours: Program, run: Callable[[], None]) -> Program:
    """Named after ours; a GPU is waited for."""

    def run_and_wait() -> None:
        run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    label = f"{library}-{ours.key['attention']}"
    return Program({**ours.key, "attention": label}, run_and_wait, None, ours.steps)
