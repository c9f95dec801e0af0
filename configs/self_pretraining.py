"""Self-pretraining on a task's own inputs: the settings of Amos et al. 2023.

"Never Train from Scratch: Fair Comparison of Long-Sequence Models Requires Data-Driven
Priors", for one GPU. A task's config has them as the presets

- `pretrain`: masked inputs of the task's own training split; every chosen one becomes
  the mask;
- `finetune`: the labels, from scratch or with train.init_from=WORKDIR;
- `scratch_matched`: the labels, from scratch, for as many epochs as both together.

Beside `quick` they keep its model and its steps. In pictures all three read every
pixel, since a masked one may be black. Unlike theirs, masked intensities of Image are
predicted as one of 256 by cross-entropy, not by an L1 loss.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from configs.defaults import ALL_PIXELS, attention, model, objective, optimizer, train


class PretrainingSettings(NamedTuple):
    """The settings of one task."""

    mlm_probability: float
    model: dict[str, Any]
    pretrain_rate: float
    finetune_rate: float
    pretrain_epochs: int
    finetune_epochs: int
    steps_per_epoch: int  # in batches of 32 examples
    finetune_batch: int = 32
    pooling: str = "mean"


LARGE_MODEL = model(num_layers=6, model_dim=512, num_heads=8, mlp_dim=2048)


SETTINGS = {
    "listops": PretrainingSettings(
        mlm_probability=0.1,
        model=LARGE_MODEL,
        pretrain_rate=1e-3,
        finetune_rate=1e-4,
        pretrain_epochs=100,
        finetune_epochs=100,
        steps_per_epoch=3_000,
    ),
    "text": PretrainingSettings(
        mlm_probability=0.15,
        model=LARGE_MODEL,
        pretrain_rate=5e-4,
        finetune_rate=1e-4,
        pretrain_epochs=32,
        finetune_epochs=65,
        steps_per_epoch=703,
    ),
    "retrieval": PretrainingSettings(
        mlm_probability=0.15,
        model=model(num_layers=4, model_dim=128, num_heads=4, mlp_dim=512),
        pretrain_rate=5e-3,
        finetune_rate=5e-4,
        pretrain_epochs=32,
        finetune_epochs=32,
        steps_per_epoch=4_596,
    ),
    "image": PretrainingSettings(
        mlm_probability=0.5,
        model=model(num_layers=3, model_dim=64, num_heads=4, mlp_dim=128),
        pretrain_rate=1e-3,
        finetune_rate=1e-3,
        pretrain_epochs=50,
        finetune_epochs=200,
        steps_per_epoch=1_406,
        finetune_batch=50,
        pooling="max",
    ),
    "pathfinder": PretrainingSettings(
        mlm_probability=0.5,
        model=model(num_layers=4, model_dim=128, num_heads=8, mlp_dim=128),
        pretrain_rate=1e-3,
        finetune_rate=5e-4,
        pretrain_epochs=50,
        finetune_epochs=200,
        steps_per_epoch=5_000,
    ),
}


def make_presets(task: str, quick: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the presets of one task.

    Args:
      task: a key of SETTINGS.
      quick: the settings of the task's preset `quick`.
    """
    settings = SETTINGS[task]
    masked_inputs = objective(
        name="mlm",
        corruption="mask_only",
        mlm_probability=settings.mlm_probability,
    )

    def stage(rate: float, num_epochs: int, batch_size: int) -> dict[str, Any]:
        steps_per_epoch = settings.steps_per_epoch * 32 // batch_size
        return {
            **ALL_PIXELS,
            **settings.model,
            **model(dropout_rate=0.0, pooling=settings.pooling),
            **attention(dropout_rate=0.0),
            **optimizer(learning_rate=rate, warmup_steps=1_000, decay="none"),
            **train(
                num_steps=0,
                num_epochs=float(num_epochs),
                batch_size=batch_size,
                eval_every=steps_per_epoch,
                checkpoint_every=steps_per_epoch,
            ),
        }

    pretrain = stage(settings.pretrain_rate, settings.pretrain_epochs, batch_size=32)
    rate = settings.finetune_rate
    batch_size = settings.finetune_batch
    all_epochs = settings.pretrain_epochs + settings.finetune_epochs
    return {
        "pretrain": pretrain | masked_inputs,
        "finetune": stage(rate, settings.finetune_epochs, batch_size),
        "scratch_matched": stage(rate, all_epochs, batch_size),
        "quick,pretrain": ALL_PIXELS | masked_inputs,
        "quick,finetune": ALL_PIXELS,
        "quick,scratch_matched": {
            **ALL_PIXELS,
            **train(num_steps=2 * quick["train.num_steps"]),
        },
    }
