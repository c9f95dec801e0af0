"""Exact evaluation: every example counted once, whatever the batch size."""

from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from nystromformer.training.data import Data, eval_indices
from nystromformer.training.devices import DATA, one_device, put
from nystromformer.training.gradients import bucket_lengths
from nystromformer.training.metrics import Totals
from nystromformer.training.step import Weights

EvalStep = Callable[[Weights, Data, jax.Array, jax.Array, Totals, int], Totals]


def evaluate(
    eval_step: EvalStep,
    weights: Weights,
    data: Data,
    batch_size: int,
    mesh: Mesh | None = None,
    length_buckets: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """loss, accuracy and examples of a split; None when asked to stop on the way.

    mesh (None = one device) is that of the weights and the data. With several
    length_buckets examples of like length share a batch, which is cut to the shortest
    of as many lengths that has room for them.
    """
    mesh = mesh or one_device()
    totals = put(mesh, Totals.zero())
    buckets = bucket_lengths(data.inputs.shape[-1], length_buckets)
    order = np.arange(len(data.labels))
    longest = np.full(len(order), buckets[-1])
    if len(buckets) > 1:
        rows = order if data.pairs is None else np.asarray(data.pairs)
        longest = np.asarray(data.lengths)[rows].reshape(len(order), -1).max(1)
        order = np.argsort(longest, kind="stable")
    for positions, present in zip(*eval_indices(len(order), batch_size), strict=True):
        batch = order[positions]
        length = buckets[int(np.searchsorted(buckets, longest[batch].max()))]
        indices, example_weights = put(mesh, (batch, present), DATA)
        totals = eval_step(weights, data, indices, example_weights, totals, length)
        jax.block_until_ready(totals)
        if should_stop():
            return None
    return totals.means()
