"""How to train: takes any model(inputs, mask, dropout_rng) -> logits, imports none."""
