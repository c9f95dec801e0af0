"""Counters of the machine, against arrays of known size."""

import numpy as np
import pytest

from nystromformer.lab.bench.counters import free_bytes, measured_peak

MIB = 2**20


def test_some_memory_is_free():
    free = free_bytes()
    assert free is None or free > 100 * MIB


def test_what_is_held_at_once_counts_and_nothing_before():
    def run():
        for _ in range(3):  # freed in between: once, not three times
            np.ones(32 * MIB, np.uint8)

    held = np.ones(64 * MIB, np.uint8)
    np.ones(256 * MIB, np.uint8)  # freed at once
    peak = measured_peak(run)
    if peak is None:
        pytest.skip("no counter on this machine")
    assert 31 <= peak / MIB <= 48
    assert held.all()
