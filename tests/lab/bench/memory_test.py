"""Counters of the machine, against arrays of known size."""

import numpy as np
import pytest

from nystromformer.lab.bench.memory import free_bytes, measured_peak

MIB = 2**20


def test_some_memory_is_free():
    free = free_bytes()
    assert free is None or free > 100 * MIB


@pytest.mark.parametrize("mib", [64, 256])
def test_the_peak_of_a_run_is_what_it_held_at_once(mib):
    def run():
        for _ in range(3):  # freed in between: once, not three times
            np.ones(mib * MIB, np.uint8)

    peak = measured_peak(run)
    if peak is None:
        pytest.skip("no counter on this machine")
    assert mib - 1 <= peak / MIB <= mib + 16


def test_neither_what_is_held_nor_an_earlier_peak_counts():
    held = np.ones(64 * MIB, np.uint8)
    np.ones(256 * MIB, np.uint8)  # freed at once
    peak = measured_peak(lambda: np.ones(32 * MIB, np.uint8))
    if peak is None:
        pytest.skip("no counter on this machine")
    assert 31 <= peak / MIB <= 48
    assert held.all()
