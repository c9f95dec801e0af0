"""Exact evaluation: every example counts once, whatever the batch size.

Letters: B batch.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from nystromformer.training.chunk_timer import ChunkTimer
from nystromformer.training.compiled import Programs
from nystromformer.training.data import HostSplit
from nystromformer.training.devices import DATA, device_put_global
from nystromformer.training.gradients import bucket_lengths
from nystromformer.training.metrics import Totals
from nystromformer.training.step import Weights


class Batches(NamedTuple):
    """Batches of examples that are cut to the same length."""

    length: int
    example_ids: np.ndarray  # int32 [num_batches, B]
    weights: np.ndarray  # float32 [num_batches, B], 0 for the filler rows of the last


def evaluate(
    programs: Programs,
    weights: Weights,
    split: HostSplit,
    batch_size: int,
    length_buckets: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Measures a split.

    Args:
      weights: the weights of the model, on the mesh of the programs.
      length_buckets: the number of lengths that batches are cut to. With several,
        examples of similar length share a batch.
      should_stop: a function that is called after every chunk.

    Returns:
      The metrics, and `examples`, their number; None when asked to stop.
    """
    mesh = programs.mesh
    totals = device_put_global(mesh, Totals.zero(programs.objective.metrics))
    for batches in _batches_by_length(split, batch_size, length_buckets):
        timer = ChunkTimer()  # The program of each length is compiled anew.
        start = 0
        while start < len(batches.example_ids):
            in_chunk = slice(start, start + timer.size)
            example_ids = batches.example_ids[in_chunk]
            with timer.measure(len(example_ids)):
                chunk = split.chunk(example_ids, mesh)
                example_weights = np.resize(
                    batches.weights[in_chunk], chunk.places.shape
                )
                totals = programs.eval_chunk(
                    weights,
                    chunk,
                    device_put_global(mesh, example_weights, axes=(None, DATA)),
                    totals,
                    length=batches.length,
                )
                jax.block_until_ready(totals)
            start += len(example_ids)
            if should_stop():
                return None
    return totals.means()


def _batches_by_length(
    split: HostSplit, batch_size: int, length_buckets: int
) -> Iterator[Batches]:
    """Batches that have every example once, the shortest lengths first."""
    buckets = np.array(bucket_lengths(split.inputs.shape[-1], length_buckets))
    example_lengths = split.example_lengths()
    order = np.arange(split.num_examples, dtype=np.int32)
    if len(buckets) > 1:
        order = order[np.argsort(example_lengths, kind="stable")]

    num_batches = -(-len(order) // batch_size)
    position = np.arange(num_batches * batch_size).reshape(num_batches, batch_size)
    # The last batch is filled by repeating the last example, with weight 0.
    example_ids = order[np.minimum(position, len(order) - 1)]
    weights = (position < len(order)).astype(np.float32)

    longest = example_lengths[example_ids].max(1)
    lengths = buckets[np.searchsorted(buckets, longest)]
    for length in np.unique(lengths):
        has_length = lengths == length
        yield Batches(int(length), example_ids[has_length], weights[has_length])
