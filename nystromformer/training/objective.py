"""Objectives: functions of a model and a batch that return sums with weights.

    objective(model, batch, key) -> {name: (sum, weight)}

`loss` is one of the names; key is None in an evaluation. From the sums come the
gradient (of the loss's sum over its weight), the metrics, and which weights are the
best. Sums and weights add up over batches and are divided once. An evaluation may draw
random numbers by `batch.example_ids` alone.

Letters: B batch, L length, K labelled tokens of an example at most, C classes.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from nystromformer.training.data import Batch

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


class Objective(Protocol):
    """What training asks of an objective.

    Attributes:
      metrics: the names of the sums.
      select: the metric by which the best weights are chosen, on validation.
      higher_is_better: whether a higher value of it is better.

    One that reads no labels says `reads_labels = False`. Data without any suit it.
    """

    @property
    def metrics(self) -> Sequence[str]: ...

    @property
    def select(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """The sums of a batch; key None = an evaluation, without dropout."""
        ...


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


class Classification:
    """Cross-entropy of the model's logits [B, C] against the labels [B].

    Args:
      select: "accuracy" or "f1".
      f1: whether the F1 of class 1 is a metric. It always is if it is selected.

    Raises:
      ValueError: select is neither of them.
    """

    metrics: Sequence[str]
    higher_is_better = True

    def __init__(self, select: str = "accuracy", f1: bool = False):
        if select not in ("accuracy", "f1"):
            raise ValueError(f"select must be accuracy or f1, got {select!r}")
        self.select = select
        self.metrics = ("loss", "accuracy")
        if f1 or select == "f1":
            self.metrics = ("loss", "accuracy", "f1")

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats), accuracy and f1 (0 to 1), by the weights of the examples."""
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        sums = label_sums(logits, batch.labels, batch.weights)
        if "f1" in self.metrics:
            sums["f1"] = _f1_sums(logits, batch.labels, batch.weights)
        return sums


def _f1_sums(
    logits: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """F1 = 2 TP / (2 TP + FP + FN) of class 1, as numerator and denominator."""
    is_predicted = logits.argmax(-1) == 1
    is_positive = labels == 1
    is_true_positive = is_predicted & is_positive
    # TP + FP are the predicted, TP + FN the positive ones: 2 TP + FP + FN is their sum.
    counts = is_predicted.astype(jnp.int32) + is_positive
    return (2 * is_true_positive * weights).sum(), (counts * weights).sum()


class Positions:
    """Cross-entropy and accuracy at the tokens that have a label; each counts once.

    Args:
      num_labels: K. Further labels of an example would not count.
    """

    metrics = ("loss", "accuracy")
    select = "accuracy"
    higher_is_better = True

    def __init__(self, num_labels: int):
        self.num_labels = num_labels

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """loss (nats) and accuracy (0 to 1) over the labelled tokens.

        `batch.labels` are [B, L], -1 where a token has none. The model has an
        `encoder`, and `read`, which makes logits of its vectors.
        """
        vectors, _ = model.encoder(batch.inputs, batch.mask, key)
        num_labels = min(self.num_labels, vectors.shape[1])
        is_labelled = (batch.labels >= 0).astype(jnp.int32)
        _, positions = jax.lax.top_k(is_labelled, num_labels)  # [B, K]
        labels = jnp.take_along_axis(batch.labels, positions, axis=1)
        vectors = jnp.take_along_axis(vectors, positions[:, :, None], axis=1)
        logits = model.read(vectors, None, key)  # [B, K, C]

        # Where an example has fewer labels, top_k has chosen tokens without one.
        has_label = labels >= 0
        weights = jnp.where(has_label, batch.weights[:, None], 0)
        return label_sums(logits, jnp.maximum(labels, 0), weights)
