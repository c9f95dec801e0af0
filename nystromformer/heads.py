"""From vectors to classes: pooling, and the classifiers of one sequence and of two."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.encoder import Encoder, kernel_init

POOLINGS = ("mean", "cls")


def pool_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean over valid tokens: x [B, L, D], mask [B, L] -> float32 [B, D]."""
    total = jnp.where(mask[:, :, None], x, 0).sum(1, dtype=jnp.float32)
    return total / jnp.maximum(mask.sum(1), 1)[:, None]


class Head(nnx.Module):
    """Linear, ReLU, Linear, in float32."""

    def __init__(
        self, in_features: int, hidden: int, num_classes: int, *, rngs: nnx.Rngs
    ):
        self.hidden = nnx.Linear(
            in_features, hidden, kernel_init=kernel_init, rngs=rngs
        )
        self.out = nnx.Linear(hidden, num_classes, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, features] -> [B, C]."""
        return self.out(jax.nn.relu(self.hidden(x)))


class SequenceClassifier(nnx.Module):
    """One sequence, one class. `encoder_options` are those of `Encoder`."""

    num_inputs = 1

    def __init__(
        self,
        *,
        num_classes: int,
        pooling: str = "mean",
        model_dim: int = 64,
        mlp_dim: int = 128,
        rngs: nnx.Rngs,
        **encoder_options: Any,
    ):
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {POOLINGS}, got {pooling!r}")
        self.pooling = pooling
        self.encoder = Encoder(
            model_dim=model_dim,
            mlp_dim=mlp_dim,
            cls_token=pooling == "cls",
            rngs=rngs,
            **encoder_options,
        )
        features = self.head_features(model_dim)
        self.head = Head(features, mlp_dim, num_classes, rngs=rngs)

    def head_features(self, model_dim: int) -> int:
        """How many numbers the head sees."""
        return model_dim

    def encode(
        self,
        inputs: jax.Array,
        mask: jax.Array | None,
        dropout_rng: jax.Array | None,
    ) -> jax.Array:
        """inputs [B, L], mask [B, L] -> pooled float32 [B, D]."""
        x, mask = self.encoder(inputs, mask, dropout_rng)
        if self.pooling == "cls":
            return x[:, 0].astype(jnp.float32)
        return pool_mean(x, mask)

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """Classifies.

        Args:
          inputs: [B, L] token ids.
          mask: [B, L] bool, False = padding; None = no padding.
          dropout_rng: a key, or None for no dropout.

        Returns:
          Logits, float32 [B, C].
        """
        return self.head(self.encode(inputs, mask, dropout_rng))


class PairClassifier(SequenceClassifier):
    """Two sequences, one class: one encoder, a head on [x₀, x₁, x₀·x₁, x₀ − x₁]."""

    num_inputs = 2

    def head_features(self, model_dim: int) -> int:
        return 4 * model_dim

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """inputs [B, 2, L], mask [B, 2, L] -> logits float32 [B, C]."""
        batch, _, length = inputs.shape
        flat_mask = None if mask is None else mask.reshape(2 * batch, length)
        flat = inputs.reshape(2 * batch, length)
        pooled = self.encode(flat, flat_mask, dropout_rng).reshape(batch, 2, -1)
        x0, x1 = pooled[:, 0], pooled[:, 1]
        return self.head(jnp.concatenate([x0, x1, x0 * x1, x0 - x1], axis=-1))
