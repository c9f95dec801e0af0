"""Classification of tokens: some tokens of a sequence have a label of their own.

Letters: B batch, L length, K labelled tokens of an example at most, C classes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.training.data import Batch
from nystromformer.training.metrics import Sums, label_sums


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
