"""A model and a task that compile and train in seconds, as flags."""

SMALL = (
    "--config.model.num_layers=1",
    "--config.model.model_dim=8",
    "--config.model.mlp_dim=8",
    "--config.attention.num_landmarks=4",
    "--config.task.num_train=300",
    "--config.task.num_validation=50",
    "--config.task.num_test=50",
    "--config.optimizer.warmup_steps=10",
    "--config.train.num_steps=400",
    "--config.train.log_every=10",
    "--config.train.eval_every=40",
    "--config.train.checkpoint_every=20",
)
