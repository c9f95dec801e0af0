"""One modern recipe for the five tasks: what lifts a plain attention on the LRA.

Sizes, rates and techniques are those of the public configs of Miralles-González et al.,
"On the locality bias and results in the Long Range Arena", 2025 (arXiv:2501.14850,
github.com/pablomiralles22/long-transformers), for one GPU. A task's config has them as
the preset `modern`; with `quick` it is the recipe at the sizes of `quick`; Pathfinder
then has no easier pictures.

- All tasks: rotary positions, and the same short convolution in front of every
  attention. The attention's own convolution of V is off, so that what distinguishes two
  runs is the attention.
- Text, Retrieval: a denoising loss from the same pass over the corrupted input.
- ListOps: arguments in a random order, since no operator minds it.
- Image: mirrored pictures. Pathfinder: the same both ways, and as many pictures with
  easier contours in train. Both: black pixels are tokens as all others.

What differs from theirs: the short convolution is ours. The rate rises and falls once,
where theirs swings between the peak and about 0 every twenty steps. Masked tokens alone
make the denoising loss, so its weight is the share that is masked; theirs is a mean
over all tokens. Texts begin at their first byte, not at a random one. The head has a
hidden layer, and Image a plain mean. Their pictures are also moved and scaled, those of
Pathfinder turned a little, those of Image recoloured; their Pathfinder has the easiest
contours, too, and validates on all three kinds.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from configs.defaults import (
    ALL_PIXELS,
    attention,
    model,
    objective,
    optimizer,
    train,
)


class RecipeSettings(NamedTuple):
    """The settings of one task."""

    model: dict[str, Any]
    rate: float
    batch_size: int
    epochs: int
    steps_per_epoch: int
    dropout_rate: float = 0.0
    weight_decay: float = 0.01


# Denoising masks this share of the tokens.
MASKED_SHARE = 0.3
DENOISING = objective(
    name="classification_denoising",
    mlm_probability=MASKED_SHARE,
    corruption="mask_or_random",
    denoising_weight=MASKED_SHARE,
)

SETTINGS = {
    "listops": RecipeSettings(
        model=model(num_layers=6, model_dim=80, num_heads=4, mlp_dim=160),
        rate=1e-3,
        batch_size=64,
        epochs=80,
        steps_per_epoch=1_500,
    ),
    "text": RecipeSettings(
        model=model(num_layers=4, model_dim=128, num_heads=8, mlp_dim=256),
        rate=4e-3,
        batch_size=32,
        epochs=60,
        steps_per_epoch=703,
        dropout_rate=0.1,
    ),
    "retrieval": RecipeSettings(
        model=model(num_layers=6, model_dim=128, num_heads=4, mlp_dim=256),
        rate=1e-3,
        batch_size=64,
        epochs=40,
        steps_per_epoch=2_298,
        dropout_rate=0.1,
    ),
    "image": RecipeSettings(
        model=model(num_layers=8, model_dim=160, num_heads=4, mlp_dim=320),
        rate=5e-4,
        batch_size=32,
        epochs=200,
        steps_per_epoch=1_406,
        weight_decay=0.0,
    ),
    "pathfinder": RecipeSettings(
        model=model(num_layers=6, model_dim=128, num_heads=4, mlp_dim=256),
        rate=1e-3,
        batch_size=128,
        epochs=100,
        steps_per_epoch=2_500,
    ),
}
# A task has the same techniques at all sizes.
TECHNIQUES = {
    "listops": train(shuffle_arguments=True),
    "text": DENOISING,
    "retrieval": DENOISING,
    "image": train(flip_horizontal=True),
    "pathfinder": train(flip_horizontal=True, flip_vertical=True),
}
TASK_OPTIONS = {
    "text": {"task.max_length": 2_048},
    "retrieval": {"task.max_length": 1_024},
    "pathfinder": {"task.easier_share": 0.5},
}
QUICK_STEPS = {"text": train(num_steps=2_000)}


def make_presets(task: str) -> dict[str, dict[str, Any]]:
    """Returns `modern` of one task, and what it is beside `quick`."""
    settings = SETTINGS[task]
    recipe: Mapping[str, Any] = {
        **ALL_PIXELS,
        **model(positions="rotary", short_conv=5, dropout_rate=settings.dropout_rate),
        **attention(dropout_rate=0.0, conv_kernel_size=0),
        **optimizer(b2=0.98, weight_decay=settings.weight_decay),
        **TECHNIQUES[task],
    }
    steps_per_epoch = settings.steps_per_epoch
    num_steps = settings.epochs * steps_per_epoch
    full = {
        **recipe,
        **TASK_OPTIONS.get(task, {}),
        **settings.model,
        **optimizer(learning_rate=settings.rate, warmup_steps=num_steps // 20),
        **train(num_steps=0, num_epochs=float(settings.epochs)),
        **train(batch_size=settings.batch_size),
        **train(eval_every=steps_per_epoch, checkpoint_every=steps_per_epoch),
    }
    quick = {**recipe, **optimizer(learning_rate=2e-3), **QUICK_STEPS.get(task, {})}
    return {"modern": full, "quick,modern": quick}
