"""Text: is a film review positive? 4,000 bytes, two classes.

    python scripts/train.py --config=configs/text.py:nystrom --workdir=DIR

`:nystrom,quick` is for two CPU cores: the first 512 bytes of each review. What it
reaches stands in results/quick_tasks/README.md, and what the paper's settings reach in
results/text/README.md.

`:nystrom,subwords` is the paper's IMDb: fine-tuned from a run of `configs/corpus.py` by
`--config.train.init_from=DIR --config.task.tokenizer=DIR/tokenizer.json`. So is
`:nystrom,quick,subwords`, from a quick run; where that read windows of 64 tokens, its
positions are repeated. `:nystrom,subwords,seq1024` reads 1,024 tokens. What these reach
stands in results/pretraining/README.md.
"""

from configs import modern, self_pretraining
from configs.corpus import BERT_BASE, BERT_QUICK
from configs.defaults import AS_PUBLISHED, attention, make_get_config, optimizer, train
from configs.glue import FINE_TUNING, QUICK_FINE_TUNING, four_epochs

PAPER = optimizer(warmup_steps=8_000) | train(
    batch_size=32, num_steps=20_000, eval_every=500, checkpoint_every=500
)
QUICK = {
    "task.max_length": 512,
    **attention(num_landmarks=32, block_size=32, projection_dim=64, window=64),
    **optimizer(learning_rate=1e-3, warmup_steps=100),
    **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
}
SUBWORDS = {
    "task.max_length": 512,
    "task.tokenizer": "byte",
    **BERT_BASE,
    **FINE_TUNING,
    **four_epochs(25_000),
}
QUICK_SUBWORDS = {
    **SUBWORDS,
    **BERT_QUICK,
    **QUICK_FINE_TUNING,
    "task.max_length": 256,
}
PRESETS = {
    "quick": QUICK,
    # As its data script cuts; the published config says 4,000.
    "as_published": AS_PUBLISHED | {"task.max_length": 1_024, "task.num_bytes": 1_000},
    "quick,as_published": AS_PUBLISHED,
    "subwords": SUBWORDS,
    "quick,subwords": QUICK_SUBWORDS,
    "seq1024": {"task.max_length": 1_024},
    "quick,seq1024": {"task.max_length": 512},
    **self_pretraining.make_presets("text", QUICK),
    **modern.make_presets("text"),
}
get_config = make_get_config("text", PAPER, PRESETS)
