"""One modern recipe for the five tasks: what lifts a plain attention on the LRA.

Sizes, rates and techniques are those of the public configs of Miralles-González et al.,
"On the locality bias and results in the Long Range Arena", 2025 (arXiv:2501.14850,
github.com/pablomiralles22/long-transformers), for one GPU. A task's config has them as
the preset `modern`; `quick,modern` is the recipe at the sizes of `quick`.

- Rotary positions, and the same short convolution in front of every attention. The
  attention's own convolution of V is off, so that what is left is the attention's.
- Text, Retrieval: a denoising loss from the same pass.

Other than theirs: the convolution, which is ours; a linear warm-up and decay of the
rate, where theirs swings between the peak and about 0 every twenty steps; the hidden
layer of the head; and the loss of hidden tokens is weighted by their share, since
theirs is a mean over all tokens.
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
    options: Mapping[str, Any] = {}  # the techniques of this task alone


HIDDEN = 0.3  # of the tokens
DENOISING = objective(
    name="classification_denoising", mlm_probability=HIDDEN, denoising_weight=HIDDEN
)
SETTINGS = {
    "text": TaskSettings(
        model=(4, 128, 8, 256),
        rate=4e-3,
        batch_size=32,
        epochs=60,
        epoch=703,
        dropout_rate=0.1,
        options={"task.max_length": 2_048, **DENOISING},
    ),
}


def presets(task: str) -> dict[str, dict[str, Any]]:
    """The presets of one task."""
    settings = SETTINGS[task]
    num_layers, model_dim, num_heads, mlp_dim = settings.model
    recipe = {
        **model(positions="rotary", short_conv=5),
        **model(dropout_rate=settings.dropout_rate),
        **attention(dropout_rate=0.0, conv_kernel_size=0),
        **optimizer(b2=0.98, weight_decay=settings.weight_decay),
    }
    full = {
        **recipe,
        **model(num_layers=num_layers, model_dim=model_dim),
        **model(num_heads=num_heads, mlp_dim=mlp_dim),
        **optimizer(
            learning_rate=settings.rate,
            warmup_steps=round(0.05 * settings.epochs * settings.epoch),
        ),
        **train(num_steps=0, num_epochs=float(settings.epochs)),
        **train(batch_size=settings.batch_size),
        **train(eval_every=settings.epoch, checkpoint_every=settings.epoch),
    }
    return {"modern": {**full, **settings.options}}
