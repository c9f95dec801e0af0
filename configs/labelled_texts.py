"""Labelled texts of your own: train.csv with the columns text and label, in bytes.

python scripts/train.py --config=configs/labelled_texts.py:nystrom --workdir=DIR
    --config.task.source_dir=FOLDER --config.task.labels=ham,spam

FOLDER holds train.csv or train.tsv and, if there are, validation and test; a tenth of
train is drawn for each of these that is not there. The model is Text's; with many
examples take more steps. `:nystrom,quick` is for two CPU cores.
"""

from configs.defaults import config_of, optimizer, train
from configs.text import QUICK

PAPER = optimizer(learning_rate=1e-3, warmup_steps=100) | train(
    batch_size=32, num_steps=5_000, eval_every=250, checkpoint_every=250
)
PRESETS = {"quick": QUICK}
get_config = config_of("labelled_texts", PAPER, PRESETS)
