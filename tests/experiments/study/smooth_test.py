"""Sines, and the same ones every time."""

import numpy as np

from nystromformer.experiments.study.smooth import NUM_WAVES, smooth_inputs

SIZES = {"num_heads": 2, "head_dim": 16}


def test_they_are_sums_of_the_lowest_waves_with_unit_variance():
    for x in smooth_inputs(256, batch_size=3, **SIZES):
        x = np.asarray(x)
        assert x.shape == (3, 256, 2, 16)
        amplitudes = np.abs(np.fft.rfft(x, axis=1)) / 256
        assert np.allclose(amplitudes[:, 1 : NUM_WAVES + 1], (2 / NUM_WAVES) ** 0.5 / 2)
        assert np.allclose(amplitudes[:, NUM_WAVES + 1 :], 0, atol=1e-6)
        assert np.allclose(x.var(1), 1, atol=1e-5)


def test_rows_heads_and_arrays_differ_and_a_second_call_does_not():
    arrays = smooth_inputs(64, batch_size=2, **SIZES, dtype="bfloat16", count=4)
    again = smooth_inputs(64, batch_size=2, **SIZES, dtype="bfloat16", count=4)
    sequences = np.concatenate([np.asarray(x, np.float32) for x in arrays])
    flat = sequences.transpose(0, 2, 3, 1).reshape(-1, 64)
    assert len(np.unique(flat, axis=0)) == 4 * 2 * 2 * 16
    assert all((x == y).all() for x, y in zip(arrays, again, strict=True))
