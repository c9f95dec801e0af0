"""How a run is spread over devices: by where its arrays lie.

A mesh has the axes "data", over which the batch is split, and "seq", over which the
length is. Parameters lie whole on every device, and the data too, but for the length.
The programs know nothing of it: XLA follows the arrays and adds what the devices have
to tell each other, which for an attention of linear cost does not grow with the length.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA, SEQ = "data", "seq"


def make_mesh(
    batch_size: int,
    length: int,
    *,
    seq_shards: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """The mesh of all devices, of all processes, or of those given.

    Args:
      batch_size: examples that all devices take together, a step or a part of one.
      length: of the sequences.
      seq_shards: over how many devices a sequence is split.
      devices: default all.

    Raises:
      ValueError: for a batch or a length that cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    if len(devices) % seq_shards:
        raise ValueError(
            f"{len(devices)} devices cannot be split into groups of seq_shards="
            f"{seq_shards}: choose another seq_shards"
        )
    shape = len(devices) // seq_shards, seq_shards
    if batch_size % shape[0]:
        raise ValueError(
            f"{batch_size} examples cannot be split evenly over {shape[0]} devices: "
            "choose another batch_size or micro_batches"
        )
    if length % seq_shards:
        raise ValueError(
            f"max_length={length} cannot be split evenly into seq_shards={seq_shards}: "
            "choose another max_length or seq_shards"
        )
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh(shape, (DATA, SEQ), axis_types=axis_types, devices=devices)


def one_device() -> Mesh:
    """The mesh of the first device of this process."""
    return make_mesh(1, 1, devices=jax.local_devices()[:1])


def put(mesh: Mesh, tree: Any, *spec: str | None) -> Any:
    """A pytree of host arrays onto the mesh; every process holds them whole.

    Args:
      mesh: of `make_mesh`.
      tree: arrays of at least len(spec) axes.
      *spec: for each axis, DATA or SEQ to split it so, or None; the rest is not split.
    """
    sharding = NamedSharding(mesh, PartitionSpec(*spec))

    def place(array: Any) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return jax.tree.map(place, tree)


def copy(mesh: Mesh, tree: Any) -> Any:
    """Arrays that lie whole on the mesh, once more: to outlive a donation of these."""
    return jax.jit(_copy, out_shardings=whole(mesh))(tree)


def _copy(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def whole(mesh: Mesh) -> NamedSharding:
    """The placement of what every device has whole."""
    return NamedSharding(mesh, PartitionSpec())
