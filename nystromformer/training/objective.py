"""Objectives: functions of a model and a batch that return sums with weights.

    objective(model, batch, key) -> {name: (sum, weight)}

with `loss` among the names; key is None in an evaluation. From this come the gradient
(of the loss's sum over its weight), the metrics, and which weights are the best.
Randomness of an evaluation may depend on `batch.indices`, the examples, alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from nystromformer.training.data import Batch

Sums = dict[str, tuple[jax.Array, jax.Array]]


class Objective(Protocol):
    """Such a function, its metrics, and the one that chooses the best weights."""

    select: str
    higher_is_better: bool

    @property
    def metrics(self) -> Sequence[str]: ...
    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums: ...


class Classification:
    """Cross-entropy of the model's logits [B, C] against the labels [B].

    Args:
      select: "accuracy" or "f1".
      f1: whether F1 of class 1 is a metric; it is if it is selected.
    """

    higher_is_better = True

    def __init__(self, select: str = "accuracy", f1: bool = False):
        if select not in ("accuracy", "f1"):
            raise ValueError(f"select must be accuracy or f1, got {select!r}")
        also = ("f1",) if f1 or select == "f1" else ()
        self.select, self.metrics = select, ("loss", "accuracy", *also)

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats), accuracy and f1 (0 to 1), by the weights of the examples."""
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        sums = label_sums(logits, batch.labels, batch.weights)
        if "f1" in self.metrics:  # 2 TP / (2 TP + FP + FN)
            guess, label = logits.argmax(-1) == 1, batch.labels == 1
            both, either = 2 * (guess & label), guess.astype(jnp.int32) + label
            sums["f1"] = (both * batch.weights).sum(), (either * batch.weights).sum()
        return sums


def label_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """loss (nats) and accuracy (0 to 1) of logits [..., C] by the weights [...]."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    total, correct = weights.sum(), logits.argmax(-1) == labels
    return {
        "loss": (jnp.where(weights > 0, losses * weights, 0).sum(), total),
        "accuracy": ((correct * weights).sum(), total),
    }


class Totals(NamedTuple):
    """Sums over batches, divided once: exact over batches of any size."""

    sums: Sums
    examples: jax.Array

    @classmethod
    def zero(cls, objective: Objective) -> "Totals":
        zero = jnp.zeros((), jnp.float32)
        return cls(dict.fromkeys(objective.metrics, (zero, zero)), zero)

    def plus(self, other: "Totals") -> "Totals":
        return jax.tree.map(jnp.add, self, other)

    def means(self) -> dict[str, float]:
        """Each metric, and the number of examples."""
        means = {
            name: float(total) / float(weight) if weight else 0.0
            for name, (total, weight) in jax.device_get(self.sums).items()
        }
        return {**means, "examples": int(self.examples)}
