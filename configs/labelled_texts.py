r"""Labelled texts of your own: train.csv with the columns text and label.

    python scripts/train.py --config=configs/labelled_texts.py:nystrom --workdir=DIR \
        --config.task.source_dir=FOLDER

FOLDER holds train.csv or train.tsv and, if there are, validation and test. A tenth of
train is drawn for test if it is not there, then a tenth of the rest for validation.
The classes are found in train; `--config.task.labels=ham,spam` gives their order.
The model is Text's; the rate and the number of steps are ours: with many examples take
more steps. `:nystrom,quick` is for two CPU cores. Tokens are bytes.

`:nystrom,subwords` is fine-tuned from a run of `configs/corpus.py` or from imported
weights, on its sub-words and with its sizes:

    python scripts/train.py --config=configs/labelled_texts.py:nystrom,subwords \
        --config.task.source_dir=FOLDER --workdir=DIR \
        --config.train.init_from=PRETRAINED

`:nystrom,quick,subwords` goes on from a quick run. Both take four epochs, however many
examples there are.
"""

from configs.bert import FOUR_EPOCHS, QUICK_SUBWORDS, SUBWORDS
from configs.defaults import make_get_config, optimizer, train
from configs.text import QUICK

BASE = optimizer(learning_rate=1e-3, warmup_steps=100) | train(
    batch_size=32, num_steps=5_000, eval_every=250, checkpoint_every=250
)
# How many examples there are is not known, so validation comes every hundred steps.
EVERY_100_STEPS = train(eval_every=100, checkpoint_every=100)
PRESETS = {
    "quick": QUICK,
    "subwords": SUBWORDS | FOUR_EPOCHS | EVERY_100_STEPS,
    "quick,subwords": QUICK_SUBWORDS | FOUR_EPOCHS | EVERY_100_STEPS,
}
get_config = make_get_config("labelled_texts", BASE, PRESETS)
