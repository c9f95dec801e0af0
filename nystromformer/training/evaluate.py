"""Exact evaluation: every example counted once, whatever the batch size."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from nystromformer.training.data import Data, Mapped, eval_indices
from nystromformer.training.devices import DATA, one_device, put
from nystromformer.training.gradients import bucket_lengths
from nystromformer.training.objective import Totals
from nystromformer.training.progress import Pace
from nystromformer.training.step import Weights

MAX_BATCHES = 64  # in one call of the device


def evaluate(
    eval_chunk: Callable[..., Totals],
    zero: Totals,
    weights: Weights,
    data: Data | Mapped,
    batch_size: int,
    mesh: Mesh | None = None,
    length_buckets: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """The metrics of a split and its number of examples; None when asked to stop.

    eval_chunk is of `make_eval_chunk`, zero of its objective. mesh (None = one device)
    is that of the weights and the data. With several length_buckets examples of like
    length share a batch, which is cut to the shortest of as many lengths that has room
    for them.
    """
    mesh = mesh or one_device()
    totals = put(mesh, zero)
    pace = Pace(MAX_BATCHES)
    for length, batches in _by_length(data, batch_size, length_buckets):
        while batches:
            now, batches = batches[: pace.size], batches[pace.size :]
            indices = np.zeros((MAX_BATCHES, batch_size), np.int32)
            present = np.zeros((MAX_BATCHES, batch_size), np.float32)
            for row, (examples, its_weights) in enumerate(now):
                indices[row], present[row] = examples, its_weights
            with pace.measure(len(now)):
                part, indices = data.part(indices, len(now))
                totals = eval_chunk(
                    weights,
                    part,
                    put(mesh, indices, None, DATA),
                    put(mesh, present, None, DATA),
                    put(mesh, np.int32(len(now))),
                    totals,
                    length=length,
                )
                jax.block_until_ready(totals)
            if should_stop():
                return None
    return totals.means()


def _by_length(
    data: Data | Mapped, batch_size: int, length_buckets: int
) -> Iterator[tuple[int, list[Any]]]:
    """Batches (examples [B], weights [B]) by the length that has room for them."""
    buckets = bucket_lengths(data.inputs.shape[-1], length_buckets)
    order = np.arange(len(data.labels))
    longest = np.full(len(order), buckets[-1])
    if len(buckets) > 1 and data.lengths is not None:
        rows = order if data.pairs is None else np.asarray(data.pairs)
        longest = np.asarray(data.lengths)[rows].reshape(len(order), -1).max(1)
        order = np.argsort(longest, kind="stable")

    def bucket(batch: tuple[np.ndarray, np.ndarray]) -> int:
        return buckets[int(np.searchsorted(buckets, longest[batch[0]].max()))]

    positions, present = eval_indices(len(order), batch_size)
    batches = zip(order[positions], present, strict=True)
    for length, group in itertools.groupby(batches, bucket):
        yield length, list(group)
