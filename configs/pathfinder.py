"""Pathfinder: do two markers sit on one dashed contour? 1,024 pixels, two classes.

    python scripts/train.py --config=configs/pathfinder.py:nystrom --workdir=DIR

The pictures are drawn first, on all cores. `quick` draws 5,000 with short contours.

Expect little: `nystrom` has stayed at 50 % for all steps of the paper's settings, one
seed (results/pathfinder/README.md), and no attention that was tried leaves 50 % with
`quick` (results/quick_tasks/README.md).
"""

from configs import modern, self_pretraining
from configs.defaults import AS_PUBLISHED, attention, make_get_config, optimizer, train

PAPER = optimizer(warmup_steps=312) | train(
    batch_size=256, num_steps=62_400, eval_every=312, checkpoint_every=624
)
QUICK = {
    "task.difficulty": "easy",
    "task.num_examples": 5_000,
    **attention(num_landmarks=32),
    **optimizer(learning_rate=1e-3, warmup_steps=100),
    **train(batch_size=32, num_steps=1_000, eval_every=250, checkpoint_every=500),
}
PRESETS = {
    "quick": QUICK,
    "as_published": AS_PUBLISHED | {"model.ignore_id": 0},  # black
    **self_pretraining.make_presets("pathfinder", QUICK),
    **modern.make_presets("pathfinder"),
}
get_config = make_get_config("pathfinder", PAPER, PRESETS)
