"""The metrics of a split: each example counts once, in batches of any size."""

from collections.abc import Callable

import jax
import numpy as np

from nystromformer.training.chunk_timer import ChunkTimer
from nystromformer.training.data import HostSplit, eval_batches
from nystromformer.training.devices import DATA, device_put_global
from nystromformer.training.objective import Totals
from nystromformer.training.step import Programs, Weights


def evaluate(
    programs: Programs,
    weights: Weights,
    split: HostSplit,
    batch_size: int,
    length_buckets: int = 1,
    max_examples: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, float] | None:
    """Measures a split.

    Args:
      weights: the weights of the model, on the mesh of the programs.
      length_buckets: the number of lengths that batches are cut to. With several,
        examples of similar length share a batch.
      max_examples: how many examples of the split are measured; None = all.
      should_stop: a function that is called after every chunk.

    Returns:
      The metrics, and `examples`, their number; None when asked to stop.
    """
    mesh = programs.mesh
    totals = device_put_global(mesh, Totals.zero(programs.objective.metrics))
    for batches in eval_batches(split, batch_size, length_buckets, max_examples):
        timer = ChunkTimer()  # The program of each length is compiled anew.
        room = split.chunk_room(batch_size)
        start = 0
        while start < len(batches.example_ids):
            in_chunk = slice(start, start + min(timer.size, room))
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
