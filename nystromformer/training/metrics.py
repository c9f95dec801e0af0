"""Metrics as weighted sums, divided once: exact over batches of any size."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class Totals(NamedTuple):
    """Sums over examples; float32 scalars. Add two of them field by field."""

    loss: jax.Array
    correct: jax.Array
    weight: jax.Array

    @classmethod
    def zero(cls) -> "Totals":
        """No examples."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields))

    def plus(self, other: "Totals") -> "Totals":
        """The sums over both."""
        return Totals(*(a + b for a, b in zip(self, other, strict=True)))

    def means(self) -> dict[str, float]:
        """loss (nats) and accuracy (0 to 1) per example, and how many examples."""
        weight = float(self.weight)
        return {
            "loss": float(self.loss) / weight,
            "accuracy": float(self.correct) / weight,
            "examples": weight,
        }


def batch_totals(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Totals:
    """Cross-entropy and hits of logits [B, C] against labels [B], by weights [B]."""
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    return Totals(
        loss=jnp.where(weights > 0, loss * weights, 0).sum(),
        correct=(correct * weights).sum(),
        weight=weights.sum(),
    )
