"""Exponents of known powers; lines of the figure."""

import pytest

from nystromformer.lab.bench.curves import draw_curves, exponent, points


def row(what, name, length, seconds, peak):
    return {
        "key": {"what": what, "attention": name, "length": length},
        "seconds": seconds and [seconds] * 7,
        "cost": peak and {"peak_bytes": peak},
    }


def test_the_exponent_is_that_of_the_power_and_short_lengths_are_not_fitted():
    for power in (0.5, 1.0, 2.0):
        curve = {n: 3 * n**power for n in (2048, 4096, 16384)}
        assert exponent({512: 1e9, **curve}) == pytest.approx(power)


def test_without_two_points_there_is_none():
    for curve in ({}, {4096: 1.0}, {512: 1, 1024: 2}, {2048: 0, 4096: 0}):
        assert exponent(curve) is None


def test_curves_are_those_of_the_pass_and_leave_out_what_did_not_run():
    rows = [
        row("forward", "softmax", 64, 1.0, 100),
        row("forward", "softmax", 128, None, 400),
        row("forward+backward", "softmax", 64, 3.0, 300),
        row("forward", "hf-nystrom-8", 64, 2.0, None),
    ]
    seconds = points(rows, "forward", "seconds")
    assert seconds == {"softmax": {64: 1.0}, "hf-nystrom-8": {64: 2.0}}
    peaks = points(rows, "forward", "bytes")
    assert peaks == {"softmax": {64: 100, 128: 400}, "hf-nystrom-8": {}}
    axes = draw_curves(rows).axes
    assert [len(a.lines) for a in axes] == [2, 1, 1, 1]
    time, memory = axes[0].lines[0], axes[1].lines[0]
    assert list(time.get_ydata()) == [1000.0]  # ms
    assert list(memory.get_ydata()) == [100 / 2**20, 400 / 2**20]
    assert axes[0].lines[1].get_linestyle() == "--"


def test_a_peer_has_the_colour_of_what_it_stands_beside():
    rows = [
        row("forward", name, 64, 1.0, None)
        for name in ("softmax", "torch-softmax", "nystrom-8", "hf-nystrom-8", "linear")
    ]
    colours = [line.get_color() for line in draw_curves(rows).axes[0].lines]
    assert colours[0] == colours[1]
    assert colours[2] == colours[3]
    assert len(set(colours)) == 3
