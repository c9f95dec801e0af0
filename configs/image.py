"""Image: CIFAR-10 in grey, 1,024 intensities, ten classes.

    python scripts/train.py --config=configs/image.py:nystrom --workdir=DIR

Black pixels are padding, as in the benchmark; `:nystrom,all_pixels` reads them, too,
and so does self-pretraining.

`:nystrom,quick` is for two CPU cores: 1,000 steps of 32 pictures. What it reaches
stands in results/quick_tasks/README.md, and what the paper's settings reach with
`all_pixels` in results/image/README.md.
"""

from configs import self_pretraining
from configs.defaults import (
    ALL_PIXELS,
    AS_PUBLISHED,
    BLACK_IS_PADDING,
    attention,
    make_get_config,
    optimizer,
    train,
)

PAPER = {
    **BLACK_IS_PADDING,
    **optimizer(warmup_steps=175),
    **train(batch_size=256, num_steps=35_000, eval_every=175, checkpoint_every=350),
}
QUICK = {
    **attention(num_landmarks=32),
    **optimizer(learning_rate=1e-3, warmup_steps=100),
    **train(batch_size=32, num_steps=1_000, eval_every=500, checkpoint_every=500),
}
PRESETS = {
    "quick": QUICK,
    "all_pixels": ALL_PIXELS,
    "as_published": AS_PUBLISHED | BLACK_IS_PADDING,
    **self_pretraining.make_presets("image", QUICK),
}
get_config = make_get_config("image", PAPER, PRESETS)
