r"""Corpus: masked tokens of plain text and the order of two parts, as in the paper.

    python scripts/train.py --config=configs/corpus.py:nystrom --workdir=DIR \
        --config.task.source_dir=TEXTS [--config.task.documents=blank_lines]

Without a preset it is BERT-small. `:nystrom,bert_base` is BERT-base, from scratch in
500,000 steps. The paper's Nyström run of that size takes about half of them, from the
weights of a run of `:softmax,bert_base`:

    python scripts/train.py --config=configs/corpus.py:nystrom,bert_base \
        --config.task.source_dir=TEXTS --config.task.tokenizer=EXACT/tokenizer.json \
        --config.train.init_from=EXACT --config.train.num_steps=250000 --workdir=DIR

A tenth of the documents is for validation, and a tenth for test, which the paper does
not have.

`:nystrom,bert_base,seq1024` goes on from 512 tokens to 1,024 (supplement C):

    python scripts/train.py --config=configs/corpus.py:nystrom,bert_base,seq1024 \
        --config.task.source_dir=TEXTS --config.task.tokenizer=DIR/tokenizer.json \
        --config.train.init_from=DIR --workdir=LONGER

A small corpus has fewer sub-words than a preset asks for: an error says how many to
take, as in --config.task.vocab_size=342, or take --config.task.tokenizer=byte.

`:nystrom,quick` is for two CPU cores: 4 layers of 128, windows of 64 tokens;
`:nystrom,quick,seq1024` goes on from its 64 tokens to 128.
"""

from configs.bert import BERT_BASE, BERT_QUICK, BERT_SMALL
from configs.defaults import attention, make_get_config, objective, optimizer, train

PAPER = {
    **BERT_SMALL,
    "task.max_length": 512,
    "task.vocab_size": 30_000,
    **objective(name="mlm_sop", mlm_probability=0.15, corruption="bert"),
    **optimizer(warmup_steps=10_000, weight_decay=0.01),
    **train(
        batch_size=256,
        num_steps=100_000,
        eval_every=1_000,
        checkpoint_every=1_000,
    ),
}
SEQ1024 = {
    "task.max_length": 1_024,
    **optimizer(learning_rate=1e-5, warmup_steps=0),
    **train(batch_size=128, num_steps=40_000, position_repeats=2),
}
QUICK = {
    **BERT_QUICK,
    "task.max_length": 64,
    "task.vocab_size": 8_192,
    **attention(
        num_landmarks=16,
        projection_dim=16,
        window=16,
        block_size=8,
        bucket_size=16,
    ),
    **optimizer(learning_rate=1e-3, warmup_steps=200),
    **train(batch_size=64, num_steps=2_000, eval_every=250, checkpoint_every=250),
}
QUICK_SEQ1024 = {
    "task.max_length": 128,
    **optimizer(learning_rate=1e-4, warmup_steps=0),
    **train(batch_size=32, num_steps=1_000, position_repeats=2),
}
PRESETS = {
    "quick": QUICK,
    "bert_base": BERT_BASE | {"train.num_steps": 500_000},
    "seq1024": SEQ1024,
    "quick,seq1024": QUICK_SEQ1024,
}
get_config = make_get_config("corpus", PAPER, PRESETS)
