"""How a run is spread over devices and processes: by the placement of its arrays.

A mesh has the axes "data", over which the batch is split, and "seq", over which the
length is. Parameters lie whole on every device, and the data too, but for the length.
The programs know nothing of it: XLA follows the arrays and adds what the devices have
to tell each other, which for an attention of linear cost does not grow with the length.

Every process runs the same program, so whatever decides what comes next (a signal that
one of them got, a clock) has to be the same number in all of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

DATA, SEQ = "data", "seq"


def make_mesh(
    batch_size: int,
    length: int,
    *,
    sequence_parallelism: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """The mesh of all devices, of all processes, or of those given.

    Args:
      batch_size: examples that all devices take together, a step or a part of one.
      length: of the sequences.
      sequence_parallelism: over how many devices a sequence is split.
      devices: default all.

    Raises:
      ValueError: for a batch or a length that cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    if len(devices) % sequence_parallelism:
        raise ValueError(
            f"{len(devices)} devices cannot be split into groups of sequence_parallelism="
            f"{sequence_parallelism}: choose another sequence_parallelism"
        )
    shape = len(devices) // sequence_parallelism, sequence_parallelism
    if batch_size % shape[0]:
        raise ValueError(
            f"{batch_size} examples cannot be split evenly over {shape[0]} devices: "
            "choose another batch_size or grad_accum_steps"
        )
    if length % sequence_parallelism:
        raise ValueError(
            f"max_length={length} cannot be split evenly into sequence_parallelism={sequence_parallelism}: "
            "choose another max_length or sequence_parallelism"
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


def whole(mesh: Mesh) -> NamedSharding:
    """The placement of arrays that every device has whole."""
    return NamedSharding(mesh, PartitionSpec())


def is_first() -> bool:
    """Whether this process is the one that prints and writes."""
    return jax.process_index() == 0


def largest(value: int) -> int:
    """The largest of all processes' values."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int32(value)).max())


def of_first(value: int) -> int:
    """The first process's value."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def wait_for_all(where: str) -> None:
    """Returns when every process has arrived."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)


class ProgramBytes(NamedTuple):
    """The bytes of a compiled program; donated outputs count once."""

    arguments: int
    outputs: int
    temporaries: int


def program_bytes(compiled: Any) -> ProgramBytes | None:
    """What a compiled program holds at once; None where the compiler does not tell."""
    usage = compiled.memory_analysis()
    if usage is None:
        return None
    return ProgramBytes(
        usage.argument_size_in_bytes,
        usage.output_size_in_bytes - usage.alias_size_in_bytes,
        usage.temp_size_in_bytes,
    )


def peak_bytes() -> int | None:
    """The peak of memory on the first device of this process; None on a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")
