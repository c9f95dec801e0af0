"""What memory a program takes, as the compiler says, and what the device counts."""

from typing import Any, NamedTuple

import jax


class ProgramBytes(NamedTuple):
    """Of a compiled program; outputs that lie in donated arguments count once."""

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
    """The most that this process has held on its first device; None on a CPU."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")
