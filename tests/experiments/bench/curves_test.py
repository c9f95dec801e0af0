"""Lines of the figure."""

from nystromformer.experiments.bench.curves import draw_curves


def row(what, name, length, seconds, peak=None):
    return {
        "key": {"what": what, "attention": name, "length": length},
        "seconds": seconds and [seconds] * 7,
        "cost": peak and {"peak_bytes": peak},
    }


def test_curves_are_those_of_the_pass_with_one_colour_a_family():
    rows = [
        row("forward", "softmax", 64, 1.0, 100),
        row("forward", "softmax", 128, None, 400),
        row("forward+backward", "softmax", 64, 3.0, 300),
        row("forward", "torch-softmax", 64, 2.0),
        row("forward", "nystrom-8", 64, 2.0),
        row("forward", "hf-nystrom-8", 64, 2.0),
    ]
    axes = draw_curves(rows).axes
    assert [len(a.lines) for a in axes] == [4, 1, 1, 1]
    time, memory = axes[0].lines[0], axes[1].lines[0]
    assert list(time.get_ydata()) == [1000.0]  # ms
    assert list(memory.get_ydata()) == [100 / 2**20, 400 / 2**20]
    exact, theirs, near, peer = (
        (line.get_color(), line.get_linestyle()) for line in axes[0].lines
    )
    assert exact[0] == theirs[0] != near[0] == peer[0]
    assert (exact[1], theirs[1], near[1], peer[1]) == ("-", "--", "-", "--")
