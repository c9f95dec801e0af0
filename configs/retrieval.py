"""Retrieval: does one paper cite the other? 2 × 4,000 bytes, two classes.

    python scripts/train.py --config=configs/retrieval.py:nystrom --workdir=DIR

The release is looked for in `task.data_dir` (7.7 GB: it is not downloaded unasked).

`:nystrom,quick` is for two CPU cores: the first 256 bytes of each paper. What it
reaches stands in results/quick_tasks/README.md.
"""

from configs import self_pretraining
from configs.defaults import AS_PUBLISHED, attention, make_get_config, optimizer, train

PAPER = optimizer(warmup_steps=800) | train(
    batch_size=32, num_steps=30_000, eval_every=300, checkpoint_every=300
)
QUICK = {
    "task.max_length": 256,
    **attention(
        num_landmarks=32,
        projection_dim=32,
        window=32,
        block_size=16,
        bucket_size=32,
    ),
    **optimizer(learning_rate=1e-3, warmup_steps=100),
    **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
}
PRESETS = {
    "quick": QUICK,
    "as_published": AS_PUBLISHED | {"task.max_length": 4_096, "task.num_bytes": 4_000},
    "quick,as_published": AS_PUBLISHED,
    **self_pretraining.make_presets("retrieval", QUICK),
}
get_config = make_get_config("retrieval", PAPER, PRESETS)
