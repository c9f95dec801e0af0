"""Exact evaluation: every example counted once, whatever the batch size."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from nystromformer.training.data import MAX_CHUNK, HostData, eval_indices
from nystromformer.training.devices import DATA, device_put_global, one_device
from nystromformer.training.gradients import bucket_lengths
from nystromformer.training.metrics import ChunkTimer
from nystromformer.training.objective import Totals
from nystromformer.training.step import Weights


def evaluate(
    eval_chunk: Callable[..., Totals],
    zero: Totals,
    weights: Weights,
    data: HostData,
    batch_size: int,
    mesh: Mesh | None = None,
    length_buckets: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The metrics of a split and its number of examples; None when asked to stop.

    eval_chunk is of `make_eval_chunk`, zero the totals of its objective; weights and
    data are on the mesh (None: one device). With several length_buckets, examples of
    similar length share a batch, truncated to the shortest of these lengths that fits.
    """
    mesh = mesh or one_device()
    totals, timer = device_put_global(mesh, zero), ChunkTimer(MAX_CHUNK)
    for length, batches in _by_length(data, batch_size, length_buckets):
        while batches:
            now, batches = batches[: timer.size], batches[timer.size :]
            present = np.zeros((MAX_CHUNK, batch_size), np.float32)
            present[: len(now)] = [its_weights for _, its_weights in now]
            with timer.measure(len(now)):
                rows, indices, count = data.chunk(np.stack([x for x, _ in now]))
                present = device_put_global(mesh, present, None, DATA)
                totals = eval_chunk(
                    weights, rows, indices, present, count, totals, length=length
                )
                jax.block_until_ready(totals)
            if should_stop():
                return None
    return totals.means()


def _by_length(
    data: HostData, batch_size: int, length_buckets: int
) -> Iterator[tuple[int, list[Any]]]:
    """The lengths, each with its batches: pairs of examples [B] and weights [B]."""
    buckets = bucket_lengths(data.inputs.shape[-1], length_buckets)
    order = np.arange(len(data.labels))
    longest = np.full(len(order), buckets[-1])
    if len(buckets) > 1 and data.lengths is not None:
        rows = order if data.pairs is None else data.pairs
        longest = data.lengths[rows].reshape(len(order), -1).max(1)
        order = np.argsort(longest, kind="stable")

    def bucket(batch: tuple[np.ndarray, np.ndarray]) -> int:
        return buckets[int(np.searchsorted(buckets, longest[batch[0]].max()))]

    positions, present = eval_indices(len(order), batch_size)
    batches = zip(order[positions], present, strict=True)
    for length, group in itertools.groupby(batches, bucket):
        yield length, list(group)
