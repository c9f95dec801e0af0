"""ListOps: nested MIN, MAX, MED and sum-modulo-10 of digits; ten classes.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR

`:nystrom,quick` is for two CPU cores: 6 landmarks for 24 to 48 tokens. What it reaches
stands in results/listops_short/README.md, beside the floors.
"""

from configs import self_pretraining
from configs.defaults import AS_PUBLISHED, attention, make_get_config, optimizer, train

PAPER = optimizer(warmup_steps=1_000) | train(
    batch_size=32, num_steps=5_000, eval_every=50, checkpoint_every=250
)
QUICK = {
    "task.max_length": 48,
    "task.min_tokens": 24,
    "task.max_tokens": 48,
    "task.max_depth": 3,
    "task.max_args": 6,
    **attention(
        num_landmarks=6,
        projection_dim=12,
        window=8,
        block_size=4,
        bucket_size=8,
    ),
    **optimizer(learning_rate=1e-3, warmup_steps=300),
    **train(num_steps=12_000, eval_every=1_000, checkpoint_every=1_000),
}
PRESETS = {
    "quick": QUICK,
    "as_published": AS_PUBLISHED | {"task.max_length": 2_048},  # `max_tokens` stays
    "quick,as_published": AS_PUBLISHED,
    **self_pretraining.make_presets("listops", QUICK),
}
get_config = make_get_config("listops", PAPER, PRESETS)
