"""Recall: keys and their values, then keys whose values are asked for.

    python scripts/train.py --config=configs/recall.py:nystrom,quick --workdir=DIR

The settings are ours, not those of Zoology.

256 tokens without a preset, 1,024 with `medium`, 4,096 with `long`, for an accelerator;
none of these has been run. `quick` is for two CPU cores, 192 tokens.

`:softmax,one_query` asks once, after 16 pairs: 100 % on test after 500 steps; nystrom
with 8 landmarks has 59 %, linear 27 % and identity 7 %, means of three seeds.

`:softmax,quick --config.task.max_length=128 --config.task.num_pairs=32` has 99.8 % on
validation after 500 steps; nystrom with 16 landmarks has 67 % then and 87 % after
1,000. results/recall/README.md has commits and what is open.
"""

from configs.defaults import (
    attention,
    make_get_config,
    model,
    objective,
    optimizer,
    train,
)

SIZE_8 = attention(
    num_landmarks=8,
    projection_dim=8,
    num_features=8,
    window=8,
    block_size=8,
    bucket_size=8,
)
SIZE_16 = attention(
    num_landmarks=16,
    projection_dim=16,
    num_features=16,
    window=16,
    block_size=16,
    bucket_size=16,
)
SIZE_64 = attention(
    num_landmarks=64,
    projection_dim=64,
    num_features=64,
    window=64,
    block_size=64,
    bucket_size=64,
)
# One convolution for all attentions, in front of their projections; none of their own.
BASE = {
    **objective(name="positions"),
    **model(dropout_rate=0.0, short_conv=3),
    **attention(conv_kernel_size=0),
    **SIZE_64,
    **optimizer(learning_rate=2e-3, warmup_steps=50, decay="none"),
    **train(batch_size=64, num_steps=4_000, eval_every=500, checkpoint_every=500),
}
MEDIUM = {
    "task.max_length": 1_024,
    "task.num_pairs": 256,
    "task.num_keys": 512,
    "task.num_queries": 256,
    **train(num_steps=8_000),
}
LONG = {
    "task.max_length": 4_096,
    "task.num_pairs": 1_024,
    "task.num_keys": 2_048,
    "task.num_queries": 1_024,
    "task.num_train": 16_000,
    "task.num_validation": 500,
    "task.num_test": 500,
    **train(batch_size=32, num_steps=8_000),
}
QUICK = {
    "task.max_length": 192,
    "task.num_pairs": 16,
    "task.num_train": 16_000,
    "task.num_validation": 500,
    "task.num_test": 500,
    **SIZE_16,
    **train(batch_size=32, num_steps=500, eval_every=250, checkpoint_every=250),
}
# The query is the last token, and the sequence has one label.
ONE_QUERY = {
    "task.max_length": 33,
    "task.num_pairs": 16,
    "task.num_keys": 32,
    "task.num_values": 16,
    "task.num_queries": 1,
    "task.num_train": 32_000,
    "task.num_validation": 1_000,
    "task.num_test": 1_000,
    **objective(name="classification"),
    **model(pooling="last"),
    **SIZE_8,
    **train(batch_size=64, num_steps=500, eval_every=100, checkpoint_every=500),
}
PRESETS = {"quick": QUICK, "medium": MEDIUM, "long": LONG, "one_query": ONE_QUERY}
get_config = make_get_config("recall", BASE, PRESETS)
