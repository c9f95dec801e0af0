r"""Pictures of your own, in a folder for each class: FOLDER/CLASS/*.png.

    python scripts/train.py --config=configs/pictures.py:nystrom --workdir=DIR \
        --config.task.source_dir=FOLDER

They are resized to `task.size`, 32 by default, and read pixel by pixel, in grey or with
`--config.task.colour=rgb`. The classes are the names of the folders. The settings are
ours: with many pictures take more steps. `:nystrom,quick` is for two CPU cores.
"""

from configs.defaults import attention, make_get_config, optimizer, train

BASE = optimizer(learning_rate=1e-3, warmup_steps=100) | train(
    batch_size=32, num_steps=5_000, eval_every=250, checkpoint_every=250
)
QUICK = attention(num_landmarks=32) | train(num_steps=1_000)
PRESETS = {"quick": QUICK}
get_config = make_get_config("pictures", BASE, PRESETS)
