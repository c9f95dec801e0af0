"""Objectives: functions of a model and a batch that return sums with weights.

    objective(model, batch, key) -> {name: (sum, weight)}

`loss` is one of the names; key is None in an evaluation. From the sums come the
gradient (of the loss's sum over its weight), the metrics, and which weights are the
best. An evaluation may draw random numbers by `batch.example_ids` alone.

Letters: B batch, C classes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from nystromformer.training.data import Batch
from nystromformer.training.metrics import Sums, label_sums


class Objective(Protocol):
    """What training asks of an objective.

    Attributes:
      metrics: the names of the sums.
      select: the metric by which the best weights are chosen, on validation.
      higher_is_better: whether a higher value of it is better.
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
