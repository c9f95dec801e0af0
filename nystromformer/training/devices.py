"""How a run is spread over devices and processes: by the placement of its arrays.

A mesh has two axes: "data" splits the batch, "seq" splits the length of the sequences.
Every device holds all parameters, and all examples of a chunk in its part of the
length. XLA follows the arrays and adds the communication. Where a mesh is None it is
one device.

The communication of a step does not grow with the length, except for exact attention,
BigBird and Reformer, whose tokens may attend to any place of the sequence; for random
landmarks, which a sort over it finds; for the gradient of learned positions; and for
Longformer and the convolutions where the part of a device is no multiple of their
blocks, of 128 tokens for a window of 256 and of 32 for a kernel of 35.

All processes of a run execute the same program. They agree on everything that decides
its course, such as a signal that only one of them has received.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer.errors import ConfigError

DATA = "data"
SEQ = "seq"
# What says how many devices there are, by platform.
DEVICES_ARE_IN = {
    "cpu": "JAX_NUM_CPU_DEVICES",
    "gpu": "CUDA_VISIBLE_DEVICES",
}


def make_mesh(
    batch_size: int,
    length: int,
    *,
    sequence_parallelism: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Arranges devices for batches of sequences.

    Args:
      batch_size: the examples of a step, or of one part of it.
      length: the length of the longest sequence.
      sequence_parallelism: how many devices share each sequence.
      devices: None = all devices of all processes.

    Raises:
      ConfigError: devices, batch or length cannot be split evenly.
    """
    if devices is None:
        devices = jax.devices()
    data_parallelism = len(devices) // sequence_parallelism
    if (
        len(devices) % sequence_parallelism
        or batch_size % data_parallelism
        or length % sequence_parallelism
    ):
        variable = DEVICES_ARE_IN.get(devices[0].platform, "their number")
        raise ConfigError(
            f"batches of {batch_size}, max_length={length}, {sequence_parallelism=} "
            f"cannot be split evenly over {len(devices)} devices: change one, or "
            f"{variable}"
        )
    return jax.make_mesh(
        (data_parallelism, sequence_parallelism),
        (DATA, SEQ),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices,
    )


def placement(mesh: Mesh | None, *axes: str | None) -> NamedSharding:
    """The sharding of arrays over a mesh.

    Args:
      axes: DATA, SEQ or None for each of the first axes of an array. An axis with None,
        and every further one, is not split.
    """
    if mesh is None:
        mesh = make_mesh(1, 1, devices=jax.local_devices()[:1])
    return NamedSharding(mesh, PartitionSpec(*axes))


def is_random_key(leaf: Any) -> bool:
    """Whether an array, or the shape of one, is a random key of JAX."""
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def device_put_global(
    mesh: Mesh | None, tree: Any, axes: Sequence[str | None] = ()
) -> Any:
    """Copies a pytree of host arrays, the same in every process, to a mesh.

    Args:
      axes: as in `placement`.
    """
    sharding = placement(mesh, *axes)

    def put(array: Any) -> jax.Array:
        if is_random_key(array):
            numbers = put(jax.random.key_data(array))
            return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array))
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)

    return jax.tree.map(put, tree)


def is_host_0() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def all_hosts_max(value: int) -> int:
    """The largest of the values that the processes call this with, in all of them."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int32(value)).max())


def check_same_on_all_hosts(**texts: str) -> None:
    """Compares texts between the processes, by their hashes.

    Raises:
      ConfigError: one of the processes has a different text. All of them raise it.
    """
    for name, text in texts.items():
        number = int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)
        largest = all_hosts_max(number)
        smallest = -all_hosts_max(-number)
        if largest != smallest:
            raise ConfigError(
                f"the processes of this run do not have the same {name}: start all of "
                "them with the same command, on the same files"
            )
