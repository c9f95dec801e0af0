"""Training of any model(inputs, mask, dropout_rng) -> logits by any objective."""
