"""Nyströmformer in JAX and Flax: the attention, the encoder, and how to train it."""
