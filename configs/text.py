"""Text: is a film review positive? 4,000 bytes, two classes.

    python scripts/train.py --config=configs/text.py:nystrom --workdir=DIR

`:nystrom,quick` is for two CPU cores: the first 512 bytes of each review. What it
reaches stands in results/quick_tasks/README.md, and what the paper's settings reach in
results/text/README.md.

`:nystrom,subwords` is the paper's IMDb: fine-tuned from a run of `configs/corpus.py` by
`--config.train.init_from=DIR`. So is `:nystrom,quick,subwords`, from a quick run; where
that read windows of 64 tokens, its positions are repeated. `:nystrom,subwords,seq1024`
reads 1,024 tokens. What these reach stands in results/pretraining/README.md.

`:nystrom,modern` is a recipe of 2025; results/text/README.md has runs of its size for a
core.
"""

from configs import self_pretraining
from configs.bert import QUICK_SUBWORDS, SUBWORDS, four_epochs
from configs.defaults import (
    AS_PUBLISHED,
    attention,
    make_get_config,
    model,
    objective,
    optimizer,
    train,
)

PAPER = optimizer(warmup_steps=8_000) | train(
    batch_size=32, num_steps=20_000, eval_every=500, checkpoint_every=500
)
QUICK = {
    "task.max_length": 512,
    **attention(num_landmarks=32, block_size=32, projection_dim=64, window=64),
    **optimizer(learning_rate=1e-3, warmup_steps=100),
    **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
}
# What lifts a plain attention on Text: rotary positions, a short convolution in front
# of every attention, and a denoising loss from the same pass over the corrupted
# input. The attention's own convolution of V is off, so that what distinguishes two
# runs is the attention. Sizes, rates and techniques are those of the public configs
# of Miralles-González et al., "On the locality bias and results in the Long Range
# Arena", 2025 (arXiv:2501.14850, github.com/pablomiralles22/long-transformers), for
# one GPU. What differs from theirs: the short convolution is ours. The rate rises and
# falls once, where theirs swings between the peak and about 0 every twenty steps.
# Masked tokens alone make the denoising loss, so its weight is the share that is
# masked; theirs is a mean over all tokens. Texts begin at their first byte, not at a
# random one. The head has a hidden layer.
MODERN_AT_ANY_SIZE = {
    **model(positions="rotary", short_conv=5, dropout_rate=0.1),
    **attention(dropout_rate=0.0, conv_kernel_size=0),
    **objective(
        name="classification_denoising",
        mlm_probability=0.3,
        corruption="mask_or_random",
        denoising_weight=0.3,
    ),
    **optimizer(b2=0.98, weight_decay=0.01),
}
MODERN = {
    **MODERN_AT_ANY_SIZE,
    "task.max_length": 2_048,
    **model(num_layers=4, model_dim=128, num_heads=8, mlp_dim=256),
    **optimizer(learning_rate=4e-3, warmup_steps=2_109),  # a twentieth of the steps
    **train(
        batch_size=32,
        num_steps=0,
        num_epochs=60.0,
        eval_every=703,  # an epoch
        checkpoint_every=703,
    ),
}
QUICK_MODERN = {
    **MODERN_AT_ANY_SIZE,
    **optimizer(learning_rate=2e-3),
    **train(num_steps=2_000),
}
PRESETS = {
    "quick": QUICK,
    "modern": MODERN,
    "quick,modern": QUICK_MODERN,
    # As its data script cuts; the published config says 4,000.
    "as_published": AS_PUBLISHED | {"task.max_length": 1_024, "task.num_bytes": 1_000},
    "quick,as_published": AS_PUBLISHED,
    "subwords": SUBWORDS | four_epochs(25_000),
    "quick,subwords": QUICK_SUBWORDS | four_epochs(25_000),
    "seq1024": {"task.max_length": 1_024},
    "quick,seq1024": {"task.max_length": 512},
    **self_pretraining.make_presets("text", QUICK),
}
get_config = make_get_config("text", PAPER, PRESETS)
