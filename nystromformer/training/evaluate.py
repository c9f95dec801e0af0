"""Exact evaluation: every example counted once, whatever the batch size."""

from collections.abc import Callable

import jax
from jax.sharding import Mesh

from nystromformer.training.batches import Data, eval_indices
from nystromformer.training.mesh import DATA, one_device, put
from nystromformer.training.metrics import Totals
from nystromformer.training.step import Weights

EvalStep = Callable[[Weights, Data, jax.Array, jax.Array, Totals], Totals]


def evaluate(
    eval_step: EvalStep,
    weights: Weights,
    data: Data,
    batch_size: int,
    mesh: Mesh | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """loss, accuracy and examples of a split; None when asked to stop on the way.

    mesh (None = one device) is that of the weights and the data.
    """
    mesh = mesh or one_device()
    totals = put(mesh, Totals.zero())
    batches = zip(*eval_indices(len(data.labels), batch_size), strict=True)
    for batch in batches:
        indices, example_weights = put(mesh, batch, DATA)
        totals = eval_step(weights, data, indices, example_weights, totals)
        jax.block_until_ready(totals)
        if should_stop():
            return None
    return totals.means()
