"""Tables of rows made by hand."""

import pytest

from nystromformer.experiments.bench.summary import draw_curves, exponent, tables

PASSES = ("forward", "forward+backward")


def row(name="linear", length=4096, what="forward", scale=1, **key):
    key |= {"what": what, "attention": name, "length": length}
    seconds = [scale * x / 1000 for x in (1, 2, 3, 4, 5)]
    return {"key": key, "peak_bytes": scale * 3 * 2**20, "seconds": seconds}


def test_exponent_is_of_the_power_and_of_long_lengths_alone():
    curve = {n: 3 * n**1.5 for n in (2048, 4096, 16384)}
    assert exponent({512: 1e9, **curve}) == pytest.approx(1.5)
    for curve in ({}, {4096: 1.0}, {512: 1, 1024: 2}):
        assert exponent(curve) is None


def test_tables_have_factors_of_softmax_exponents_and_gaps():
    full = {**row("full", 2048), "seconds": []}
    rows = [row("softmax", scale=20), row(), row(length=2048), full]
    text = "\n".join(tables(rows))
    assert "## Forward: ms\n\n| attention | 4,096 | 2,048 | exponent |" in text
    assert "| linear | 3 (2–4) · 20× | 3 (2–4) | 0.00 |" in text
    assert "| linear | 3 · 20× | 3 | 0.00 |" in text  # MiB
    assert "| softmax | 60 (40–80) | — | — |" in text
    assert "| full | — | out of memory | — |" in text
    assert "PyTorch" not in text


def test_tables_of_train_steps_are_by_task_with_its_sizes():
    sizes = {"what": "train step", "length": 64, "batch_size": 32}
    rows = [row(task=task, **sizes) for task in ("text", "image")]
    text = "\n".join(tables(rows))
    assert "| attention | text 32 × 64 | image 32 × 64 |" in text
    assert "| linear | 3 (2–4) | 3 (2–4) |" in text


def test_tables_compare_pytorch_round_by_round_with_ours_of_its_size():
    theirs = row("hf-nystrom-8")
    theirs["seconds"] = [0.002, 0.008, 0.009, 0.004, 0.02]
    others = [row("hf-nystrom-8", length=128), row("nystrom-4")]
    others.append(row("nystrom-8", what="forward+backward"))
    ours = [row("nystrom-8"), row("nystrom-8 in 4")]
    # 2, 4, 3, 1 and 4 times as long; the ratio of the medians would be 2.67.
    line = "| forward | hf-nystrom-8 ÷ nystrom-8 | 4,096 | 3.00 (2.00–4.00) |"
    in_parts = line.replace("÷ nystrom-8", "÷ nystrom-8 in 4")
    found = tables([*ours, theirs, *others])
    assert [x for x in found if "÷" in x] == [line, in_parts]


def test_draw_curves_has_a_colour_a_family_and_dashes_for_pytorch():
    labels = ("nystrom-32", "nystrom-64", "linear", "hf-nystrom-64")
    rows = [row(x, n, what) for x in labels for n in (64, 128) for what in PASSES]
    figure = draw_curves(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        lines = {line.get_label(): line for line in axes.lines}
        assert [*lines] == [*labels]
        first, second, other, torch = lines.values()
        assert first.get_color() == second.get_color() == torch.get_color()
        assert first.get_color() != other.get_color()
        assert first.get_marker() != second.get_marker()
        assert (second.get_linestyle(), torch.get_linestyle()) == ("-", "--")
