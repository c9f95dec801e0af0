"""Exact evaluation: every example counted once, whatever the batch size."""

from collections.abc import Callable

import jax

from nystromformer.training.batches import Data, eval_indices
from nystromformer.training.metrics import Totals
from nystromformer.training.step import Weights

EvalStep = Callable[[Weights, Data, jax.Array, jax.Array, Totals], Totals]


def evaluate(
    eval_step: EvalStep,
    weights: Weights,
    data: Data,
    batch_size: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """loss, accuracy and examples of a split; None when asked to stop on the way."""
    totals = Totals.zero()
    indices, example_weights = eval_indices(len(data.labels), batch_size)
    for batch in zip(indices, example_weights, strict=True):
        totals = jax.block_until_ready(eval_step(weights, data, *batch, totals))
        if should_stop():
            return None
    return totals.means()
