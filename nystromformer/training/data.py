"""Batches of examples: chosen by number on the host, gathered on the devices.

A batch is a list of example ids, the numbers of its examples in their split. Batch k of
epoch e is a pure function of (seed, e, k), so a resumed run needs no state of an
iterator. On the devices an example has a place, its position in the copied arrays.

The rows of the next few batches, a *chunk*, are copied to the devices together. The
compiled program sees only chunks, all of one shape. So it does not depend on the number
of examples, and it can be compiled while the data are still being loaded.

Letters: B batch, L length, F features of an input.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nystromformer.errors import ConfigError
from nystromformer.training.devices import DATA, SEQ, device_put_global

# A chunk has room for this many batches, or for as many as have this many bytes.
MAX_CHUNK = 64
MAX_CHUNK_BYTES = 2**28


class Batch(NamedTuple):
    """The examples that an objective gets."""

    inputs: jax.Array  # int32 [B, L], of pairs [B, 2, L]; or features [B, L, F]
    mask: jax.Array | None  # bool [B, L], of pairs [B, 2, L]; None = no padding
    labels: jax.Array  # int32 [B]; of tokens [B, L], -1 where a token has no label
    weights: jax.Array  # float32 [B]; 0 for the filler rows of an incomplete batch
    example_ids: jax.Array  # int32 [B], the numbers of the examples in their split


class DeviceRows(NamedTuple):
    """Examples on the devices: those of a chunk, or a whole split."""

    inputs: jax.Array  # token ids [rows, L], or features [rows, L, F]
    lengths: jax.Array | None  # int32 [rows]; None = no row has padding
    labels: jax.Array  # int32 [examples], of tokens [examples, L]
    pairs: jax.Array | None = None  # int32 [examples, 2]; None = example i is row i
    # int32 [examples], the numbers of the examples in their split. None = the whole
    # split is here, and example i has the number i.
    example_ids: jax.Array | None = None

    def example_lengths(self, places: jax.Array) -> jax.Array:
        """The lengths int32 [B] of the examples at places; of a pair the longer one."""
        if self.lengths is None:
            return jnp.full(len(places), self.inputs.shape[1], jnp.int32)
        if self.pairs is None:
            return self.lengths[places]
        return self.lengths[self.pairs[places]].max(-1)

    def take(
        self, places: jax.Array, weights: jax.Array, length: int | None = None
    ) -> Batch:
        """Gathers the examples of a batch.

        Args:
          places: int32 [B], the places of the examples in these arrays.
          weights: float32 [B], handed on to the batch.
          length: the length to cut inputs and labels to, at least that of the longest
            example; None = all of L.
        """
        row_indices = places if self.pairs is None else self.pairs[places]
        length_axis = row_indices.ndim
        inputs = jax.lax.slice_in_dim(
            self.inputs[row_indices], 0, length, axis=length_axis
        )
        if jnp.issubdtype(inputs.dtype, jnp.integer):
            inputs = inputs.astype(jnp.int32)

        mask = None
        if self.lengths is not None:
            positions = jax.lax.broadcasted_iota(
                jnp.int32, inputs.shape[: length_axis + 1], dimension=length_axis
            )
            mask = positions < self.lengths[row_indices][..., None]

        labels = self.labels[places]
        if labels.ndim == 2:
            labels = labels[:, :length]

        example_ids = places if self.example_ids is None else self.example_ids[places]
        return Batch(
            inputs=inputs,
            mask=mask,
            labels=labels,
            weights=weights,
            example_ids=example_ids,
        )


class Chunk(NamedTuple):
    """A few batches on the devices, in arrays with room for K of them."""

    rows: DeviceRows
    places: jax.Array  # int32 [K, B], where each batch is in `rows`
    num_batches: jax.Array | int  # how many of these batches are to be used


@dataclasses.dataclass(frozen=True)
class HostSplit:
    """The examples of a split in host memory, or on a disk.

    Attributes:
      inputs: token ids [rows, L], or features [rows, L, F]: anything with `shape`,
        `dtype` and `inputs[row_indices]`, and perhaps with `prefetch(row_indices)`.
      lengths: int32 [rows]; None = no row has padding.
      labels: int32 [examples], of tokens [examples, L].
      pairs: int32 [examples, 2], the two rows of each example; None = example i is
        row i.
    """

    inputs: Any
    lengths: np.ndarray | None
    labels: np.ndarray
    pairs: np.ndarray | None

    @classmethod
    def from_split(cls, split: Any) -> "HostSplit":
        """Wraps anything with these four attributes, as a task's `Split` has them.

        Raises:
          ConfigError: the inputs are neither token ids, which a step turns to int32,
            nor features, or the labels are no classes.
        """
        dtype = split.inputs.dtype
        shape = split.inputs.shape
        are_ids = np.issubdtype(dtype, np.integer) and len(shape) == 2
        are_features = np.issubdtype(dtype, np.floating) and len(shape) == 3
        if not are_ids and not are_features:
            raise ConfigError(
                "inputs of a split must be token ids, integers [rows, L], or feature "
                f"vectors, floats [rows, L, F], got {dtype} {shape}"
            )
        labels = np.array(split.labels)
        # A token may have no label, which is -1.
        least_label = 0 if labels.ndim == 1 else -1
        is_integer = labels.dtype.kind in "iub" or not labels.size
        if not is_integer or (labels < least_label).any():
            raise ConfigError(
                f"labels of a split must be classes, integers from {least_label} on, "
                f"got {labels.dtype} from {labels.min()} on"
            )
        lengths = None if split.lengths is None else np.array(split.lengths)
        if lengths is not None and (lengths == shape[1]).all():
            lengths = None
        return cls(
            inputs=split.inputs,
            lengths=lengths,
            labels=labels.astype(np.int32),
            pairs=None if split.pairs is None else np.array(split.pairs),
        )

    @property
    def num_examples(self) -> int:
        return len(self.labels)

    def example_lengths(self) -> np.ndarray:
        """The length of every example, int32 [examples]; of a pair the longer one."""
        if self.lengths is None:
            return np.full(self.num_examples, self.inputs.shape[1], np.int32)
        if self.pairs is None:
            return self.lengths
        return self.lengths[self.pairs].max(-1)

    def put(self, mesh: Mesh | None = None) -> DeviceRows:
        """Copies all examples to the devices."""
        return DeviceRows(
            inputs=device_put_global(mesh, self.inputs, axes=(None, SEQ)),
            lengths=device_put_global(mesh, self.lengths),
            labels=device_put_global(mesh, self.labels),
            pairs=device_put_global(mesh, self.pairs),
        )

    def prefetch(self, example_ids: np.ndarray) -> None:
        """Reads the rows of the next chunk from a disk while the devices compute."""
        if hasattr(self.inputs, "prefetch"):
            row_indices = example_ids if self.pairs is None else self.pairs[example_ids]
            self.inputs.prefetch(row_indices.ravel())

    def chunk_room(self, batch_size: int) -> int:
        """The number of batches for which a chunk has room."""
        rows_per_example = 1 if self.pairs is None else 2
        row_size = math.prod(self.inputs.shape[1:])
        bytes_per_example = rows_per_example * row_size * self.inputs.dtype.itemsize
        room = MAX_CHUNK_BYTES // (batch_size * bytes_per_example)
        return min(max(room, 1), MAX_CHUNK)

    def chunk(self, example_ids: np.ndarray, mesh: Mesh | None = None) -> Chunk:
        """Copies a few batches to the devices.

        Args:
          example_ids: int32 [N, B], the examples of N ≤ `chunk_room(B)` batches.
          mesh: the mesh that splits each batch over its axis "data" and the length
            over "seq".
        """
        num_batches, batch_size = example_ids.shape
        room = self.chunk_room(batch_size)
        # The room behind the N batches is filled by repeating them.
        filled_ids = np.resize(example_ids, (room, batch_size)).ravel()
        places = np.arange(len(filled_ids), dtype=np.int32)

        if self.pairs is None:
            split_rows = filled_ids
            chunk_pairs = None
        else:
            split_rows = self.pairs[filled_ids].ravel()
            # The rows of a pair come one after the other: 2 i and 2 i + 1.
            chunk_pairs = np.stack([2 * places, 2 * places + 1], axis=1)
        lengths = None if self.lengths is None else self.lengths[split_rows]

        # Only the tokens of the N batches are read, as they may lie on a disk.
        rows_per_batch = len(split_rows) // room
        num_used = num_batches * rows_per_batch
        inputs = np.zeros((len(split_rows), *self.inputs.shape[1:]), self.inputs.dtype)
        inputs[:num_used] = self.inputs[split_rows[:num_used]]

        rows = DeviceRows(
            inputs=device_put_global(mesh, inputs, axes=(None, SEQ)),
            lengths=device_put_global(mesh, lengths),
            labels=device_put_global(mesh, self.labels[filled_ids]),
            pairs=device_put_global(mesh, chunk_pairs),
            example_ids=device_put_global(mesh, filled_ids),
        )
        places = places.reshape(room, batch_size)
        return Chunk(
            rows=rows,
            places=device_put_global(mesh, places, axes=(None, DATA)),
            num_batches=device_put_global(mesh, np.int32(num_batches)),
        )


def train_example_ids(
    seed: int, first_step: int, num_steps: int, num_examples: int, batch_size: int
) -> np.ndarray:
    """The examples of num_steps steps, beginning with first_step.

    Every epoch has its own order, and leaves out the last num_examples mod B examples
    of it.

    Returns:
      int32 [num_steps, B].
    """
    batches_per_epoch = num_examples // batch_size
    example_ids = np.empty((num_steps, batch_size), np.int32)
    for i in range(num_steps):
        epoch, k = divmod(first_step + i, batches_per_epoch)
        order = _permutation(seed, epoch, num_examples)
        example_ids[i] = order[k * batch_size : (k + 1) * batch_size]
    return example_ids


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(num_examples)
    return order.astype(np.int32)


def bucket_lengths(max_length: int, num_buckets: int) -> tuple[int, ...]:
    """At most num_buckets lengths in even steps, up to max_length."""
    steps = range(1, num_buckets + 1)
    return tuple(sorted({-(-max_length * i // num_buckets) for i in steps}))


class EvalBatches(NamedTuple):
    """Batches of examples that are cut to the same length."""

    length: int
    example_ids: np.ndarray  # int32 [num_batches, B]
    weights: np.ndarray  # float32 [num_batches, B], 0 for the filler rows of the last


def eval_batches(
    split: HostSplit,
    batch_size: int,
    length_buckets: int,
    max_examples: int | None = None,
) -> Iterator[EvalBatches]:
    """Batches that have every example once, the shortest lengths first.

    Of more than `max_examples` they have so many, evenly spread: a split may be sorted
    by class.
    """
    buckets = np.array(bucket_lengths(split.inputs.shape[1], length_buckets))
    example_lengths = split.example_lengths()
    order = np.arange(split.num_examples, dtype=np.int32)
    if max_examples is not None and max_examples < len(order):
        order = order[np.arange(max_examples) * len(order) // max_examples]
    if len(buckets) > 1:
        order = order[np.argsort(example_lengths[order], kind="stable")]

    num_batches = -(-len(order) // batch_size)
    position = np.arange(num_batches * batch_size).reshape(num_batches, batch_size)
    # The last batch is filled by repeating the last example, with weight 0.
    example_ids = order[np.minimum(position, len(order) - 1)]
    weights = (position < len(order)).astype(np.float32)

    longest = example_lengths[example_ids].max(1)
    lengths = buckets[np.searchsorted(buckets, longest)]
    for length in np.unique(lengths):
        has_length = lengths == length
        yield EvalBatches(int(length), example_ids[has_length], weights[has_length])
