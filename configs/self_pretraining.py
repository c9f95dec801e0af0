"""Self-pretraining on a task's own inputs: the settings of Amos et al. 2023.

"Never Train from Scratch: Fair Comparison of Long-Sequence Models Requires Data-Driven
Priors", for one GPU. A task's config has them as the presets

- `pretrain`: masked inputs of the task's own training split; every chosen one becomes
  the mask;
- `finetune`: the labels, from scratch or with train.init_from=WORKDIR;
- `scratch_matched`: the labels, from scratch, for as many epochs as both together.

Beside `quick` they keep its model and its steps. Unlike theirs, masked intensities of
Image are predicted as one of 256 by cross-entropy, not by an L1 loss. `plans.py` has
the sweep `self_pretraining`.
"""

from typing import Any


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
) -> dict[str, dict[str, Any]]:
    """The presets of one task.

    Args:
      mlm_probability: the fraction of the inputs that is masked.
      model: layers, width, heads and FFN.
      rates: learning rates of pre-training and fine-tuning.
      epochs: numbers of epochs of both.
      epoch: steps in one, of 32 examples.
      quick_steps: steps of the task's `quick`.
      fine_batch: examples a step of fine-tuning.
      pooling: of the classifier.
    """
    num_layers, model_dim, num_heads, mlp_dim = model
    objective = {
        "objective.name": "mlm",
        "objective.mlm_probability": mlm_probability,
        "objective.corruption": "mask_only",
    }

    def stage(rate: float, num_epochs: int, batch_size: int) -> dict[str, Any]:
        every = epoch * 32 // batch_size
        return {
            "model.num_layers": num_layers,
            "model.model_dim": model_dim,
            "model.num_heads": num_heads,
            "model.mlp_dim": mlp_dim,
            "model.dropout_rate": 0.0,
            "model.pooling": pooling,
            "attention.dropout_rate": 0.0,
            "optimizer.learning_rate": rate,
            "optimizer.warmup_steps": 1_000,
            "optimizer.decay": "none",
            "train.batch_size": batch_size,
            "train.num_steps": 0,
            "train.num_epochs": float(num_epochs),
            "train.eval_every": every,
            "train.checkpoint_every": every,
        }

    return {
        "pretrain": stage(rates[0], epochs[0], 32) | objective,
        "finetune": stage(rates[1], epochs[1], fine_batch),
        "scratch_matched": stage(rates[1], sum(epochs), fine_batch),
        "quick,pretrain": objective,
        "quick,finetune": {},
        "quick,scratch_matched": {"train.num_steps": 2 * quick_steps},
    }
