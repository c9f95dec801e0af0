"""Metrics as sums with weights, which add up over batches and are divided once.

Letters: C classes.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

# Metric -> (sum, weight), both scalars; the metric is the sum over its weight.
Sums = dict[str, tuple[jax.Array, jax.Array]]


class Totals(NamedTuple):
    """Sums over batches: their means are exact, whatever the sizes of the batches."""

    sums: Sums
    # float32, the sum of the examples' weights. It is exact up to 2²⁴ examples.
    examples: jax.Array

    @classmethod
    def zero(cls, names: Iterable[str]) -> "Totals":
        """The totals of no batch, for metrics of these names."""
        zero = jnp.zeros((), jnp.float32)
        return cls(dict.fromkeys(names, (zero, zero)), zero)

    def plus(self, other: "Totals") -> "Totals":
        """The totals over the batches of both."""
        return jax.tree.map(jnp.add, self, other)

    def means(self) -> dict[str, float]:
        """Each metric, NaN where nothing has weight, and `examples`, their number."""
        means: dict[str, float] = {}
        for name, (total, weight) in jax.device_get(self.sums).items():
            means[name] = float(total) / float(weight) if weight else math.nan
        means["examples"] = int(self.examples)
        return means


def label_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """The cross-entropy and the accuracy of classes.

    Args:
      logits: [..., C].
      labels: int [...], in [0, C).
      weights: [...]. What has weight 0 need not be finite, except for a gradient.

    Returns:
      `loss` in nats and `accuracy` from 0 to 1.
    """
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    is_correct = logits.argmax(-1) == labels
    total_weight = weights.sum()
    return {
        "loss": (jnp.where(weights > 0, losses * weights, 0).sum(), total_weight),
        "accuracy": ((is_correct * weights).sum(), total_weight),
    }
