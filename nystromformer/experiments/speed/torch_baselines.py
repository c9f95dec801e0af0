"""The same work in PyTorch, timed beside ours: each gets the numbers that ours gets."""

# pyright: reportMissingImports=false
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
import transformers

from nystromformer.config import Config
from nystromformer.experiments.speed.timing import Program
from nystromformer.experiments.speed.train_steps import STEPS
from nystromformer.training.data import DeviceRows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}
# The options of Nyström attention that transformers' model has.
PUBLISHED = {"landmarks": "segment_means", "pinv": "iterative", "num_pinv_iters": 6}
torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX takes


def attention_baseline(program: Program, inputs: Sequence[jax.Array]) -> Program | None:
    """Returns torch's exact attention beside softmax, and None beside others.

    Args:
      program: the program of ours beside which it stands.
      inputs: its query, key, value and cotangent, [B, L, N, H].
    """
    if program.key.attention != "softmax":
        return None
    dtype = getattr(torch, program.key.dtype)
    tensors = []
    for array in inputs:
        # Through float32, as numpy has no bfloat16; torch wants [B, N, L, H].
        heads_first = np.array(array, np.float32).swapaxes(1, 2)
        tensors.append(torch.tensor(heads_first).to(DEVICE, dtype))
    *qkv, cotangent = tensors
    attend: Any = torch.nn.functional.scaled_dot_product_attention

    def forward() -> None:
        with torch.no_grad():
            attend(*qkv)

    def forward_and_backward() -> None:
        leaves = [x.detach().requires_grad_() for x in qkv]
        torch.autograd.grad(attend(*leaves), leaves, cotangent)

    is_forward = program.key.what == "forward"
    return _program("torch", program, forward if is_forward else forward_and_backward)


def train_baseline(
    program: Program, config: Config, data: DeviceRows
) -> Program | None:
    """Returns train steps of transformers' classifier, with layers of the size of ours.

    Its vocabulary and classes are those that occur in the data. Sequences are padded to
    the next multiple of the landmarks. They are not masked: the classifier of
    transformers 5 raises an error for a mask.

    Args:
      program: the program of ours beside which it stands.
      config: the config of this program.
      data: its batches.

    Returns:
      The program. None if our model differs from transformers' in kind: that one always
      has a convolution of V, one input, the options of PUBLISHED and undivided batches.
    """
    options = config.attention.options
    has_published_options = options.items() >= PUBLISHED.items()
    if not has_published_options or not options["conv_kernel_size"]:
        return None
    if config.train.grad_accum_steps > 1 or data.pairs is not None:
        return None

    inputs = np.asarray(data.inputs, np.int64)
    labels = np.asarray(data.labels, np.int64)
    num_missing = -inputs.shape[1] % options["num_landmarks"]
    inputs = np.pad(inputs, ((0, 0), (0, num_missing)))
    classifier = _make_classifier(
        config,
        length=inputs.shape[1],
        vocab_size=int(inputs.max()) + 1,
        num_classes=int(labels.max()) + 1,
    )
    optimizer = torch.optim.AdamW(
        classifier.parameters(), config.optimizer.learning_rate
    )
    input_batches = torch.tensor(inputs).to(DEVICE).chunk(STEPS)
    label_batches = torch.tensor(labels).to(DEVICE).chunk(STEPS)
    batches = list(zip(input_batches, label_batches, strict=True))

    def run() -> None:
        for batch_inputs, batch_labels in batches:
            optimizer.zero_grad()
            with _autocast(config.model.dtype):
                loss = classifier(batch_inputs, labels=batch_labels).loss
            loss.backward()
            optimizer.step()

    return _program("hf", program, run)


def _autocast(dtype: str) -> Any:
    """The context in which products are computed in a dtype, of float32 weights.

    That is what ours does. Transformers' inverse of the landmark matrix makes a float32
    identity, so that a model of bfloat16 weights raises an error.
    """
    is_enabled = dtype != "float32"
    return torch.autocast(DEVICE, getattr(torch, dtype), enabled=is_enabled)


def _make_classifier(
    config: Config, *, length: int, vocab_size: int, num_classes: int
) -> Any:
    """Transformers' classifier with fresh float32 weights, ready to train."""
    model = config.model
    options = config.attention.options
    make_config: Any = transformers.NystromformerConfig
    torch_config = make_config(
        vocab_size=vocab_size,
        hidden_size=model.model_dim,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_heads,
        intermediate_size=model.mlp_dim,
        hidden_dropout_prob=model.dropout_rate,
        num_labels=num_classes,
        num_landmarks=options["num_landmarks"],
        conv_kernel_size=options["conv_kernel_size"],
        segment_means_seq_len=length,
        max_position_embeddings=length,
    )
    torch.manual_seed(0)
    classifier: Any = transformers.NystromformerForSequenceClassification(torch_config)
    return classifier.to(DEVICE).train()


def _program(library: str, program: Program, run: Callable[[], None]) -> Program:
    """A program named after ours, which waits for a GPU to end."""

    def wait(_: None) -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    label = f"{library}-{program.key.attention}"
    key = dataclasses.replace(program.key, attention=label)
    return Program(key=key, run=run, wait=wait, steps=program.steps)
