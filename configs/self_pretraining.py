"""Self-pretraining on a task's own inputs: the settings of Amos et al. 2023.

"Never Train from Scratch: Fair Comparison of Long-Sequence Models Requires Data-Driven
Priors", for one GPU. A task's config has them as the presets

- `pretrain`: masked inputs of the task's own training split; every chosen one becomes
  the mask;
- `finetune`: the labels, from scratch or with train.init_from=WORKDIR;
- `scratch_matched`: the labels, from scratch, for as many epochs as both together.

Beside `quick` they keep its model and its steps. Unlike theirs, masked intensities of
Image are predicted as one of 256 by cross-entropy, not by an L1 loss.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from configs.defaults import attention, model, objective, optimizer, train


class TaskSettings(NamedTuple):
    """The settings of one task."""

    mlm_probability: float
    model: tuple[int, int, int, int]  # layers, width, heads, FFN
    rates: tuple[float, float]  # of pre-training and of fine-tuning, as the next
    epochs: tuple[int, int]
    epoch: int  # steps in one, of 32 examples
    fine_batch: int = 32
    pooling: str = "mean"


SETTINGS = {
    "listops": TaskSettings(0.1, (6, 512, 8, 2048), (1e-3, 1e-4), (100, 100), 3_000),
    "text": TaskSettings(0.15, (6, 512, 8, 2048), (5e-4, 1e-4), (32, 65), 703),
    "retrieval": TaskSettings(0.15, (4, 128, 4, 512), (5e-3, 5e-4), (32, 32), 4_596),
    "image": TaskSettings(
        0.5, (3, 64, 4, 128), (1e-3, 1e-3), (50, 200), 1_406, 50, "max"
    ),
    "pathfinder": TaskSettings(0.5, (4, 128, 8, 128), (1e-3, 5e-4), (50, 200), 5_000),
}


def presets(task: str, quick: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The presets of one task, whose preset `quick` has these settings."""
    settings = SETTINGS[task]
    num_layers, model_dim, num_heads, mlp_dim = settings.model
    masked = objective(name="mlm", corruption="mask_only")
    masked |= objective(mlm_probability=settings.mlm_probability)

    def stage(rate: float, num_epochs: int, batch_size: int) -> dict[str, Any]:
        every = settings.epoch * 32 // batch_size
        return {
            **model(num_layers=num_layers, model_dim=model_dim),
            **model(num_heads=num_heads, mlp_dim=mlp_dim),
            **model(dropout_rate=0.0, pooling=settings.pooling),
            **attention(dropout_rate=0.0),
            **optimizer(learning_rate=rate, warmup_steps=1_000, decay="none"),
            **train(num_steps=0, num_epochs=float(num_epochs)),
            **train(batch_size=batch_size, eval_every=every, checkpoint_every=every),
        }

    (first_rate, rate), (first_epochs, epochs) = settings.rates, settings.epochs
    batch_size = settings.fine_batch
    return {
        "pretrain": stage(first_rate, first_epochs, 32) | masked,
        "finetune": stage(rate, epochs, batch_size),
        "scratch_matched": stage(rate, first_epochs + epochs, batch_size),
        "quick,pretrain": masked,
        "quick,finetune": {},
        "quick,scratch_matched": {"train.num_steps": 2 * quick["train.num_steps"]},
    }
