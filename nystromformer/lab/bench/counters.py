"""How much memory there is, and how much a run takes by the machine's own counters."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

SHARE = 0.8  # of what is free; the rest is for inputs, the compiler and others


def free_bytes() -> int | None:
    """What the device, or on a CPU the machine, has free; None where it is silent."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return _proc("/proc/meminfo", "MemAvailable")


def measured_peak(run: Callable[[], Any]) -> int | None:
    """How far memory in use rises in one run: bytes beside those in use before.

    By the device's counter. It cannot be reset, so None where the process has used more
    before. On a CPU by the resident memory of the process, where Linux shows it.
    """
    device = jax.devices()[0]
    if before := device.memory_stats():
        run()
        after = device.memory_stats() or before
        rose = after["peak_bytes_in_use"] > before["peak_bytes_in_use"]
        return after["peak_bytes_in_use"] - before["bytes_in_use"] if rose else None
    try:
        ctypes.CDLL(None).malloc_trim(0)  # else what was freed before hides a peak
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from VmRSS
    except (OSError, AttributeError):
        run()
        return None
    resident = _proc("/proc/self/status", "VmRSS")
    run()
    peak = _proc("/proc/self/status", "VmHWM")
    return None if resident is None or peak is None else max(peak - resident, 0)


def _proc(path: str, name: str) -> int | None:
    """A line `name: 123 kB` of a file of Linux, in bytes."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields[name].split()[0]) * 1024 if name in fields else None
