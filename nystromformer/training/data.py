"""Batches by index: the rows of a chunk of steps go to the device together.

So a program is compiled for any number of examples, and while they are loaded. Batch k
of epoch e is a pure function of (seed, e, k): a resumed run needs no iterator.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nystromformer.errors import ConfigError
from nystromformer.training.devices import DATA, SEQ, device_put_global

MAX_CHUNK = 64  # batches in one call of the device


class Batch(NamedTuple):
    """Some examples, as an objective gets them."""

    inputs: jax.Array  # int32 [B, L] or [B, 2, L]
    mask: jax.Array | None  # bool, as inputs, False = padding; None = all are full
    labels: jax.Array  # int32 [B]; or of tokens [B, L], -1 where one has none
    weights: jax.Array  # float32 [B]; 0 for a filler row of a last, incomplete batch
    indices: jax.Array  # int32 [B], of the examples in their split


class Data(NamedTuple):
    """A split on the host or the devices, or a chunk's rows on the devices."""

    inputs: Any  # [rows, L]; on the host anything with shape, dtype, `inputs[indices]`
    lengths: Any  # [rows]; None where all are full, and need no mask
    labels: Any  # [examples], or of tokens [examples, L]
    pairs: Any = None  # int32 [examples, 2], their rows; None = example i is row i
    examples: jax.Array | None = None  # of a chunk: int32 [examples], in the split

    @classmethod
    def of(cls, split: Any) -> "Data":
        """The host's data of anything with the first four arrays.

        ConfigError unless inputs are token ids: a step would make zeros of features.
        """
        dtype, shape = split.inputs.dtype, split.inputs.shape
        if not np.issubdtype(dtype, np.integer) or len(shape) != 2:
            raise ConfigError(
                f"inputs of a split must be token ids, integers [rows, L], got {dtype} "
                f"{shape}; for feature vectors write the steps, as in examples/bags.py"
            )
        lengths: np.ndarray | None = np.array(split.lengths)
        if (lengths == split.inputs.shape[-1]).all():
            lengths = None
        return cls(split.inputs, lengths, np.array(split.labels), split.pairs)

    def put(self, mesh: Mesh | None = None) -> "Data":
        """All examples on the devices."""
        rest = device_put_global(mesh, self[1:])
        return Data(device_put_global(mesh, self.inputs, None, SEQ), *rest)

    def prefetch(self, batches: np.ndarray) -> None:
        """Reads rows on a disk for the next `chunk` while the device computes."""
        if hasattr(self.inputs, "prefetch"):
            self.inputs.prefetch(batches.ravel())

    def chunk(
        self, batches: np.ndarray, mesh: Mesh | None = None
    ) -> tuple["Data", jax.Array, jax.Array]:
        """The rows of batches [n, B], the batches in them [MAX_CHUNK, B], and n."""
        shape = MAX_CHUNK, batches.shape[1]
        examples = np.resize(batches, shape).ravel()  # more batches, not to be taken
        rows = self.rows(examples).ravel()
        tokens = np.zeros((len(rows), *self.inputs.shape[1:]), self.inputs.dtype)
        wanted = rows[: len(rows) * len(batches) // MAX_CHUNK]
        tokens[: len(wanted)] = self.inputs[wanted]
        lengths = None if self.lengths is None else self.lengths[rows]
        places = np.arange(len(rows), dtype=np.int32)
        pairs = None if self.pairs is None else places.reshape(-1, 2)
        put = functools.partial(device_put_global, mesh)
        rest = put((lengths, self.labels[examples], pairs, examples))
        here = put(places[: len(examples)].reshape(shape), None, DATA)
        return Data(put(tokens, None, SEQ), *rest), here, put(np.int32(len(batches)))

    def rows(self, indices: Any) -> Any:
        """The rows of the examples at indices [B]: [B], or of pairs [B, 2]."""
        return indices if self.pairs is None else self.pairs[indices]

    def lengths_of(self, indices: Any) -> Any:
        """The lengths int32 [B] of the examples at indices [B]; of pairs the longer."""
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
        labels = self.labels[indices]
        if labels.ndim == 2:
            labels = labels[:, :length]
        examples = indices if self.examples is None else self.examples[indices]
        return Batch(inputs, mask, labels, weights, examples)


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    order = np.random.default_rng((seed, epoch)).permutation(num_examples)
    return order.astype(np.int32)


def train_indices(
    seed: int, first_step: int, num_steps: int, num_examples: int, batch_size: int
) -> np.ndarray:
    """The examples of num_steps steps from first_step on, int32 [num_steps, B].

    Every epoch is a new permutation, without its last num_examples mod B examples.
    ConfigError for fewer examples than a batch has.
    """
    if num_examples < batch_size:
        raise ConfigError(
            f"train.batch_size={batch_size} is over the {num_examples} training "
            "examples: take a smaller one"
        )
    indices = np.empty((num_steps, batch_size), np.int32)
    for i in range(num_steps):
        epoch, k = divmod(first_step + i, num_examples // batch_size)
        order = _permutation(seed, epoch, num_examples)
        indices[i] = order[k * batch_size : (k + 1) * batch_size]
    return indices
