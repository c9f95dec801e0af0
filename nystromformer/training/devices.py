"""How a run is spread over devices and processes: by the placement of its arrays.

A mesh has the axes "data", over which the batch is split, and "seq", over which the
length is. Every device holds all parameters, and a chunk's examples in their part of
the length. XLA follows the arrays and adds the communication, which for an attention of
linear cost does not grow with the length. Where a mesh is None it is one device.

All processes run one program, and agree on what decides its course, such as a signal.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nystromformer.errors import ConfigError

DATA, SEQ = "data", "seq"


def make_mesh(
    batch_size: int,
    length: int,
    *,
    sequence_parallelism: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """The mesh of `devices` (None: all, of all processes).

    Each sequence is split over sequence_parallelism of them. ConfigError if devices,
    batch_size (of a step, or a part of one) or length cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    shape = len(devices) // sequence_parallelism, sequence_parallelism
    if len(devices) % shape[1] or batch_size % shape[0] or length % shape[1]:
        asked = f"batches of {batch_size}, max_length={length}, {sequence_parallelism=}"
        split = f"cannot be split evenly over {len(devices)} devices: change one"
        raise ConfigError(f"{asked} {split}, or CUDA_VISIBLE_DEVICES")
    types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh(shape, (DATA, SEQ), axis_types=types, devices=devices)


def placement(mesh: Mesh | None, *spec: str | None) -> NamedSharding:
    """How arrays lie on the mesh: DATA, SEQ or None (not split) for each first axis."""
    mesh = mesh or make_mesh(1, 1, devices=jax.local_devices()[:1])
    return NamedSharding(mesh, PartitionSpec(*spec))


def device_put_global(mesh: Mesh | None, tree: Any, *spec: str | None) -> Any:
    """Puts a pytree of host arrays, the same in every process, onto the mesh."""
    where = placement(mesh, *spec)

    def put(array: Any) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, where, array.__getitem__)

    return jax.tree.map(put, tree)


def is_host_0() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def all_hosts_max(value: int) -> int:
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int32(value)).max())


def check_same_on_all_hosts(**texts: str) -> None:
    """Raises ConfigError in every process if one of them has another text."""
    for name, text in texts.items():
        number = int(hashlib.sha256(text.encode()).hexdigest()[:7], 16)
        if all_hosts_max(number) != -all_hosts_max(-number):
            rule = "start all of them with the same command, on the same files"
            differ = f"the processes of this run do not have the same {name}"
            raise ConfigError(f"{differ}: {rule}")


def program_bytes(compiled: Any) -> int | None:
    """What a compiled program holds at once; donated arguments count once.

    None where the backend does not say.
    """
    usage = compiled.memory_analysis()
    if usage is None:
        return None
    results = usage.output_size_in_bytes - usage.alias_size_in_bytes
    return usage.argument_size_in_bytes + results + usage.temp_size_in_bytes
