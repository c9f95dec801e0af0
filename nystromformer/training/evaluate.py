"""Exact evaluation: every example counted once, whatever the batch size."""

from collections.abc import Callable

import jax
import numpy as np

from nystromformer.training.data import Data
from nystromformer.training.devices import DATA, device_put_global
from nystromformer.training.gradients import bucket_lengths
from nystromformer.training.metrics import ChunkTimer
from nystromformer.training.objective import Totals
from nystromformer.training.step import Programs, Weights


def evaluate(
    programs: Programs,
    weights: Weights,
    data: Data,
    batch_size: int,
    length_buckets: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The metrics of a split and its number of examples; None when asked to stop.

    The weights are on the mesh of the programs, the data on the host. With several
    length_buckets, examples of similar length share a batch, cut to the next of them.
    """
    mesh, timer = programs.mesh, ChunkTimer()
    totals = device_put_global(mesh, Totals.zero(programs.objective))
    lengths, indices, present = _by_length(data, batch_size, length_buckets)
    for length in np.unique(lengths):
        batches = np.flatnonzero(lengths == length)
        while len(batches):
            now, batches = batches[: timer.size], batches[timer.size :]
            with timer.measure(len(now)):
                rows, here, count = data.chunk(indices[now], mesh)
                counted = np.resize(present[now], here.shape)
                counted = device_put_global(mesh, counted, None, DATA)
                totals = programs.eval_chunk(
                    weights, rows, here, counted, count, totals, length=int(length)
                )
                jax.block_until_ready(totals)
            if should_stop():
                return None
    return totals.means()


def _by_length(
    data: Data, batch_size: int, length_buckets: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Batches that have every example once; in several buckets the short ones first.

    Returns the length [N] of each batch, its examples int32 [N, B], and their weights
    float32 [N, B], 0 for the filler rows of the last.
    """
    buckets = np.array(bucket_lengths(data.inputs.shape[-1], length_buckets))
    order = np.arange(len(data.labels), dtype=np.int32)
    longest = np.asarray(data.lengths_of(order))
    if len(buckets) > 1:
        order = order[np.argsort(longest, kind="stable")]
    num_batches = -(-len(order) // batch_size)
    position = np.arange(num_batches * batch_size).reshape(num_batches, batch_size)
    examples = order[np.minimum(position, len(order) - 1)]
    fits = np.searchsorted(buckets, longest[examples].max(1))
    return buckets[fits], examples, (position < len(order)).astype(np.float32)
