"""Training of any nnx model by any objective."""
