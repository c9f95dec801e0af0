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

from configs.bert import (
    BERT_BASE,
    BERT_QUICK,
    FINE_TUNING,
    QUICK_FINE_TUNING,
    four_epochs,
)
from configs.defaults import attention, make_get_config, objective, optimizer

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
