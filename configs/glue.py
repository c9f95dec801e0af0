r"""GLUE: SST-2, MRPC, QNLI, QQP and MNLI, fine-tuned from a run on a corpus.

    python scripts/train.py --config=configs/glue.py:nystrom,mrpc --workdir=DIR \
        --config.task.source_dir=GLUE --config.train.init_from=PRETRAINED

GLUE is the folder of SST-2/, MRPC/, …; PRETRAINED a run of `configs/corpus.py`, whose
size and sub-words it takes: BERT-base, or with `quick` its quick one. The rate is
constant, as in the authors' script (the paper names no schedule);
`:nystrom,mrpc,warmup` warms up over 100 steps and decays to zero. MRPC and QQP report
F1 too; QQP is selected by it. MNLI is tested on its matched part and on its mismatched
part. `:nystrom,mrpc,seq1024` reads 1,024 tokens, from a run of
`configs/corpus.py:nystrom,bert_base,seq1024`.
"""

from typing import Any

from configs.corpus import BERT_BASE, BERT_QUICK
from configs.defaults import attention, make_get_config, objective, optimizer, train


def four_epochs(num_train: int) -> dict[str, Any]:
    """Four epochs of `num_train` examples, with two validations in each.

    A run with other batches than 32 is validated after as many steps as one with 32.
    """
    steps_per_epoch = int(0.9 * num_train) // 32  # a tenth is held out for validation
    return {
        **train(batch_size=32, num_steps=0, num_epochs=4.0),
        **train(eval_every=steps_per_epoch // 2, checkpoint_every=steps_per_epoch // 2),
    }


FINE_TUNING = optimizer(
    learning_rate=3e-5, weight_decay=0.01, warmup_steps=0, decay="none"
)
# A quick run of configs/corpus.py reads windows of 64 tokens.
QUICK_FINE_TUNING = {
    **optimizer(learning_rate=1e-4),
    **attention(num_landmarks=32, projection_dim=64),
    **train(position_repeats=4),
}
PAPER = {"task.max_length": 512} | BERT_BASE | FINE_TUNING | four_epochs(67_349)
QUICK = {
    "task.max_length": 128,
    **BERT_QUICK,
    **QUICK_FINE_TUNING,
    **attention(window=32, block_size=16),
}
# Without another subset they are of SST-2.
PRESETS = {
    "quick": QUICK,
    "mrpc": {"task.subset": "mrpc"} | objective(f1=True) | four_epochs(3_668),
    "qnli": {"task.subset": "qnli"} | four_epochs(104_743),
    "qqp": {"task.subset": "qqp"} | objective(select="f1") | four_epochs(363_846),
    "mnli": {"task.subset": "mnli"} | four_epochs(392_702),
    "seq1024": {"task.max_length": 1_024},
    "quick,seq1024": {"task.max_length": 256},
    "warmup": optimizer(warmup_steps=100, decay="linear"),
}
get_config = make_get_config("glue", PAPER, PRESETS)
