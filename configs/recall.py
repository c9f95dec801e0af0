"""Recall: keys and their values, then keys whose values are asked for.

python scripts/train.py --config=configs/recall.py:nystrom,quick --workdir=DIR
"""

from configs.defaults import attention, config_of, model, objective, optimizer, train

MODEL = {
    **model(dropout_rate=0.0),
    **objective(name="positions"),
    **optimizer(learning_rate=2e-3, warmup_steps=50),
}
PAPER = {
    **MODEL,
    **train(batch_size=64, num_steps=5_000, eval_every=500, checkpoint_every=500),
}
QUICK = {
    "task.max_length": 128,
    "task.num_pairs": 32,
    "task.num_keys": 128,
    "task.num_values": 128,
    "task.num_queries": 64,
    "task.num_train": 32_000,
    "task.num_validation": 1_000,
    "task.num_test": 1_000,
    **attention(num_landmarks=16, projection_dim=16, num_features=16, window=16),
    **attention(block_size=16, bucket_size=16),
    **train(batch_size=32, num_steps=1_000, eval_every=250, checkpoint_every=500),
}
ONE_QUERY = {
    "task.max_length": 33,
    "task.num_pairs": 16,
    "task.num_keys": 32,
    "task.num_values": 16,
    "task.num_queries": 1,
    **objective(name="classification"),
    **model(pooling="last"),
    **attention(num_landmarks=8),
    **train(batch_size=64, num_steps=500),
}
PRESETS = {"quick": QUICK, "one_query": ONE_QUERY}
get_config = config_of("recall", PAPER, PRESETS)
