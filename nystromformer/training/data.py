"""Batches by index, from arrays on the device or rows that are fetched for each chunk.

Batch k of epoch e is a pure function of (seed, e, k): a resumed run needs no iterator.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nystromformer.training.devices import SEQ, device_put_global, one_device


class Batch(NamedTuple):
    """Some examples, as an objective gets them.

    inputs: int32 [B, L] or [B, 2, L].
    mask: bool, as inputs, False = padding; None where every example is full.
    labels: int32 [B].
    weights: float32 [B]; 0 marks a filler row of a last, incomplete batch.
    indices: int32 [B], the examples in their split.
    """

    inputs: jax.Array
    mask: jax.Array | None
    labels: jax.Array
    weights: jax.Array
    indices: jax.Array


class Data(NamedTuple):
    """A split on the devices: inputs [rows, L], lengths [rows], labels [examples].

    lengths is None where every row is full: then nothing pays for a mask. pairs int32
    [examples, 2] names the two rows of each example; None = example i is row i. For a
    part of a split, examples int32 [rows] are their indices in it; None = all of it.
    """

    inputs: jax.Array
    lengths: jax.Array | None
    labels: jax.Array
    pairs: jax.Array | None
    examples: jax.Array | None = None

    @classmethod
    def put(cls, split: Any, mesh: Mesh | None = None) -> "Data":
        """Copies anything with these four arrays to the devices (None: one), once."""
        mesh = mesh or one_device()
        rest = device_put_global(mesh, (_lengths(split), split.labels, split.pairs))
        return cls(device_put_global(mesh, split.inputs, None, SEQ), *rest)

    def part(self, indices: np.ndarray, count: int) -> tuple["Data", np.ndarray]:
        """As `FetchedData.part`; everything is on the devices already."""
        return self, indices

    def rows(self, indices: Any) -> Any:
        """The rows of the examples at indices [B]: [B], or of pairs [B, 2]."""
        return indices if self.pairs is None else self.pairs[indices]

    def lengths_of(self, indices: Any) -> jax.Array:
        """int32 [B]: of the examples at indices [B], of pairs the longer one."""
        if self.lengths is None:
            return jnp.full(len(indices), self.inputs.shape[-1], jnp.int32)
        lengths = self.lengths[self.rows(indices)]
        return lengths if self.pairs is None else lengths.max(-1)

    def take(
        self, indices: jax.Array, weights: jax.Array, length: int | None = None
    ) -> Batch:
        """The examples at indices [B], truncated to a length in which each fits."""
        rows = self.rows(indices)
        inputs = self.inputs[rows][..., :length].astype(jnp.int32)
        mask = None
        if self.lengths is not None:
            last = inputs.ndim - 1
            positions = jax.lax.broadcasted_iota(jnp.int32, inputs.shape, last)
            mask = positions < self.lengths[rows][..., None]
        examples = indices if self.examples is None else self.examples[indices]
        return Batch(inputs, mask, self.labels[indices], weights, examples)


class FetchedData(NamedTuple):
    """A split of single rows that are not on the devices: fetched for each chunk.

    inputs: anything with shape, dtype and `inputs[indices]`, as a memory-mapped file.
    """

    inputs: Any
    lengths: np.ndarray | None
    labels: np.ndarray
    mesh: Mesh
    pairs: None = None

    def part(self, indices: np.ndarray, count: int) -> tuple[Data, np.ndarray]:
        """Data with the rows of batches [K, B], and the indices of the batches there.

        Only the first `count` batches are fetched; the others are zeros.
        """
        examples, first = indices.ravel(), indices[:count].ravel()
        tokens = np.zeros((indices.size, *self.inputs.shape[1:]), self.inputs.dtype)
        tokens[: first.size] = self.inputs[first]
        lengths = None if self.lengths is None else self.lengths[examples]
        rest = lengths, self.labels[examples], None, examples
        inputs = device_put_global(self.mesh, tokens, None, SEQ)
        here = np.arange(indices.size, dtype=np.int32)
        return Data(inputs, *device_put_global(self.mesh, rest)), here.reshape(
            indices.shape
        )


def to_device(split: Any, mesh: Mesh | None = None) -> Data | FetchedData:
    """A split on the devices (None: one), but for rows that are no array in memory."""
    if type(split.inputs) is np.ndarray:
        return Data.put(split, mesh)
    labels = np.array(split.labels)
    return FetchedData(split.inputs, _lengths(split), labels, mesh or one_device())


def _lengths(split: Any) -> np.ndarray | None:
    """The lengths of the rows in memory; None where every row is full."""
    lengths = np.array(split.lengths)
    return None if (lengths == split.inputs.shape[-1]).all() else lengths


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(num_examples)
    return order.astype(np.int32)


def train_indices(
    seed: int, first_step: int, num_steps: int, num_examples: int, batch_size: int
) -> np.ndarray:
    """The examples of num_steps steps from first_step on, int32 [num_steps, B].

    Every epoch is a new permutation, and leaves out its last num_examples mod B.
    """
    per_epoch = num_examples // batch_size
    if per_epoch == 0:
        raise ValueError(
            f"batch_size {batch_size} is over the {num_examples} training examples"
        )
    indices = np.empty((num_steps, batch_size), np.int32)
    for i in range(num_steps):
        epoch, k = divmod(first_step + i, per_epoch)
        order = _permutation(seed, epoch, num_examples)
        indices[i] = order[k * batch_size : (k + 1) * batch_size]
    return indices


def eval_indices(num_examples: int, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Every example once: indices int32 and weights float32, both [batches, B]."""
    num_batches = -(-num_examples // batch_size)
    position = np.arange(num_batches * batch_size).reshape(num_batches, batch_size)
    weights = (position < num_examples).astype(np.float32)
    return np.minimum(position, num_examples - 1).astype(np.int32), weights
