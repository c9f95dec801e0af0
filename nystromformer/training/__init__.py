"""Training of any model(inputs, mask, dropout_rng) -> logits; imports no model."""
