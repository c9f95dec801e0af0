"""One modern recipe for the five tasks: what lifts a plain attention on the LRA.

Sizes, rates and techniques are those of the public configs of Miralles-González et al.,
"On the locality bias and results in the Long Range Arena", 2025 (arXiv:2501.14850,
github.com/pablomiralles22/long-transformers), for one GPU. A task's config has them as
the preset `modern`; with `quick` it is the recipe at the sizes of `quick`.

- All tasks: rotary positions, and the same short convolution in front of every
  attention. The attention's own convolution of V is off, so that what distinguishes two
  runs is the attention.
- Text, Retrieval: a denoising loss from the same pass over the corrupted input.
- ListOps: arguments in a random order, since no operator minds it.
- Image: mirrored pictures. Pathfinder: the same both ways, and as many pictures with
  easier contours in train.

What differs from theirs: the short convolution is ours. The rate rises and falls once,
where theirs swings between the peak and about 0 every twenty steps. Hidden tokens alone
make the denoising loss, so its weight is the share that is hidden; theirs is a mean
over all tokens. Texts begin at their first byte, not at a random one. The head has a
hidden layer, and Image a plain mean. Their pictures are also moved and scaled, those of
Pathfinder turned a little, those of Image recoloured; their Pathfinder has the easiest
contours, too, and validates on all three kinds.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from configs.defaults import attention, model, objective, optimizer, train


class TaskSettings(NamedTuple):
    """The settings of one task."""

    model: tuple[int, int, int, int]  # layers, width, heads, FFN
    rate: float
    batch_size: int
    epochs: int
    epoch: int  # steps in one
    dropout_rate: float = 0.0
    weight_decay: float = 0.01


HIDDEN = 0.3  # of the tokens
DENOISING = objective(
    name="classification_denoising",
    mlm_probability=HIDDEN,
    corruption="mask_or_random",
    denoising_weight=HIDDEN,
)

SETTINGS = {
    "listops": TaskSettings((6, 80, 4, 160), 1e-3, 64, 80, 1_500),
    "text": TaskSettings((4, 128, 8, 256), 4e-3, 32, 60, 703, dropout_rate=0.1),
    "retrieval": TaskSettings((6, 128, 4, 256), 1e-3, 64, 40, 2_298, dropout_rate=0.1),
    "image": TaskSettings((8, 160, 4, 320), 5e-4, 32, 200, 1_406, weight_decay=0.0),
    "pathfinder": TaskSettings((6, 128, 4, 256), 1e-3, 128, 100, 2_500),
}
TECHNIQUES = {  # of one task, at all sizes
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


def presets(task: str) -> dict[str, dict[str, Any]]:
    """`modern` of one task, and what it is beside `quick`."""
    settings = SETTINGS[task]
    num_layers, model_dim, num_heads, mlp_dim = settings.model
    recipe: Mapping[str, Any] = {
        **model(positions="rotary", short_conv=5, dropout_rate=settings.dropout_rate),
        **attention(dropout_rate=0.0, conv_kernel_size=0),
        **optimizer(b2=0.98, weight_decay=settings.weight_decay),
        **TECHNIQUES[task],
    }
    full = {
        **recipe,
        **TASK_OPTIONS.get(task, {}),
        **model(num_layers=num_layers, model_dim=model_dim),
        **model(num_heads=num_heads, mlp_dim=mlp_dim),
        **optimizer(
            learning_rate=settings.rate,
            warmup_steps=settings.epochs * settings.epoch // 20,
        ),
        **train(num_steps=0, num_epochs=float(settings.epochs)),
        **train(batch_size=settings.batch_size),
        **train(eval_every=settings.epoch, checkpoint_every=settings.epoch),
    }
    quick = {**recipe, **optimizer(learning_rate=2e-3), **QUICK_STEPS.get(task, {})}
    return {"modern": full, "quick,modern": quick}
