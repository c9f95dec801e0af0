"""Path-X: Pathfinder at 128 × 128, 16,384 pixels, two classes.

    python scripts/train.py --config=configs/pathx.py:nystrom,gpu --workdir=DIR

Not in the paper: the settings are those of Pathfinder at a sixteenth of the batch.
Black pixels are padding, as in the benchmark; `all_pixels` reads them, too. `gpu` fits
one GPU; `quick` only shows that all of it runs: 20 steps on 100 pictures.
"""

from configs.defaults import (
    ALL_PIXELS,
    AS_PUBLISHED,
    BLACK_IS_PADDING,
    make_get_config,
    model,
    optimizer,
    train,
)

BASE = {
    **BLACK_IS_PADDING,
    **optimizer(warmup_steps=312),
    **train(
        batch_size=16,
        num_steps=62_400,
        eval_every=3_120,
        checkpoint_every=3_120,
    ),
}
GPU = model(dtype="bfloat16", remat="block") | train(batch_size=32)
QUICK = {
    "task.num_examples": 100,
    **optimizer(learning_rate=1e-3, warmup_steps=5),
    **train(batch_size=2, num_steps=20, eval_every=10, checkpoint_every=20),
}
PRESETS = {
    "quick": QUICK,
    "gpu": GPU,
    "all_pixels": ALL_PIXELS,
    "as_published": AS_PUBLISHED | BLACK_IS_PADDING,
}
get_config = make_get_config("pathx", BASE, PRESETS)
