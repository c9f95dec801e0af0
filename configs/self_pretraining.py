"""Self-pretraining on a task's own inputs: the settings of Amos et al. 2023.

"Never Train from Scratch: Fair Comparison of Long-Sequence Models Requires Data-Driven
Priors", for one GPU. Of a task's config these are the presets

- `pretrain`: hidden inputs of the task's own training split; every chosen one becomes
  the mask;
- `finetune`: the labels, from scratch or with train.init_from=WORKDIR;
- `scratch_matched`: the labels, from scratch, for as many epochs as both together.

Beside `quick` they keep its model and its steps. Unlike theirs, hidden intensities of
Image are told as one of 256 by cross-entropy, not by an L1 loss. `plans.py` has the
sweep `self_pretraining`.
"""

from collections.abc import Mapping
from typing import Any

from configs.defaults import MASKED


def presets(
    *,
    mlm_probability: float,
    model: tuple[int, int, int, int],
    rates: tuple[float, float],
    epochs: tuple[int, int],
    epoch: int,
    quick_steps: int,
    fine_batch: int = 32,
    pooling: str = "mean",
) -> dict[str, Mapping[str, Any]]:
    """The presets of one task.

    Args:
      mlm_probability: of the inputs that are hidden.
      model: layers, width, heads and FFN.
      rates: learning rates of pre-training and fine-tuning.
      epochs: of both.
      epoch: steps in one, of 32 examples.
      quick_steps: of the task's `quick`.
      fine_batch: examples a step of fine-tuning.
    """
    sizes = dict(
        zip(("num_layers", "model_dim", "num_heads", "mlp_dim"), model, strict=True)
    )
    both = {
        "model": {**sizes, "dropout_rate": 0.0, "pooling": pooling},
        "attention": {"dropout_rate": 0.0},
    }
    objective = {"objective": {**MASKED, "mlm_probability": mlm_probability}}

    def stage(rate: float, num_epochs: int, batch_size: int) -> dict[str, Any]:
        every = epoch * 32 // batch_size
        train = {"num_epochs": float(num_epochs), "num_steps": num_epochs * every}
        train |= {"eval_every": every, "checkpoint_every": every}
        optimizer = {"learning_rate": rate, "warmup_steps": 1_000, "decay": "none"}
        train["batch_size"] = batch_size
        return {**both, "optimizer": optimizer, "train": train}

    return {
        "pretrain": {**stage(rates[0], epochs[0], 32), **objective},
        "finetune": stage(rates[1], epochs[1], fine_batch),
        "scratch_matched": stage(rates[1], sum(epochs), fine_batch),
        "quick pretrain": objective,
        "quick finetune": {},
        "quick scratch_matched": {"train": {"num_steps": 2 * quick_steps}},
    }
