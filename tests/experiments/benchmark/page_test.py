"""Tables of rows made by hand."""

from nystromformer.experiments.benchmark.page import (
    draw_curves,
    draw_landmarks,
    fit_exponent,
    make_tables,
)

PASSES = ("forward", "forward+backward")


def row(name="linear", length=4096, what="forward", scale=1, **key):
    key |= {"what": what, "attention": name, "length": length}
    seconds = [scale * x / 1000 for x in (1, 2, 3, 4, 5)]
    return {"key": key, "peak_bytes": scale * 3 * 2**20, "seconds": seconds}


def test_fit_exponent_is_of_the_power_and_of_long_lengths_alone():
    curve = {n: 3 * n**1.5 for n in (2048, 4096, 16384)}
    assert fit_exponent({512: 1e9, **curve}) == "1.50"
    for curve in ({}, {4096: 1.0}, {512: 1, 1024: 2}):
        assert fit_exponent(curve) == "—"


def test_make_tables_has_factors_of_softmax_exponents_and_gaps():
    full = {**row("full", 2048), "seconds": []}
    text = "\n".join(
        make_tables([row("softmax", scale=20), row(), row(length=2048), full])
    )
    assert "## Forward: ms\n\n| attention | 4,096 | 2,048 | exponent |" in text
    assert "| linear | 3 (2–4) · 20× | 3 (2–4) | 0.00 |" in text
    assert "| linear | 3 · 20× | 3 | 0.00 |" in text  # MiB
    assert "| softmax | 60 (40–80) | — | — |" in text
    assert "| full | — | out of memory | — |" in text


def test_make_tables_of_memory_has_factors_of_all_scores_where_they_were_measured():
    rows = [row("softmax_all_scores", scale=60), row("softmax", scale=20), row()]
    lines = make_tables(rows)
    assert "| softmax | 60 (40–80) | — |" in lines
    assert "| linear | 3 (2–4) · 20× | — |" in lines
    assert "| softmax | 60 · 3.0× | — |" in lines
    assert "| linear | 3 · 60× | — |" in lines


def test_make_tables_without_time_is_of_memory_alone():
    rows = [{**row("softmax", scale=2), "seconds": []}, {**row(), "seconds": []}]
    lines = make_tables(rows, has_time=False)
    assert [line for line in lines if line.startswith("##")] == ["## Forward: MiB"]
    assert "| linear | 3 · 2.0× | — |" in lines


def test_draw_landmarks_has_a_line_a_length_with_and_without_the_convolution():
    rows = []
    for kernel_size, name in ((0, ""), (35, " + convolution of 35")):
        for count in (16, 64, 32):
            for length in (512, 2_048):
                options = {"num_landmarks": count, "conv_kernel_size": kernel_size}
                label = f"nystrom-{count}{name}"
                rows += [
                    row(label, length, what, count, options=options) for what in PASSES
                ]
    rows.append(row("linear", 512, options={}))
    figure = draw_landmarks(rows)
    assert len(figure.axes) == 4
    for axes, unit_value in zip(figure.axes, 2 * [3, 3], strict=True):
        assert [line.get_label() for line in axes.lines] == [
            "nystrom, 512 tokens",
            "nystrom, 2,048 tokens",
            "nystrom + convolution of 35, 512 tokens",
            "nystrom + convolution of 35, 2,048 tokens",
        ]
        for line in axes.lines:
            assert [*line.get_xdata()] == [16, 32, 64]
            assert [*line.get_ydata()] == [unit_value * x for x in (16, 32, 64)]
    assert len(draw_landmarks(rows, has_time=False).axes) == 2
    one_count = [x for x in rows if x["key"]["options"].get("num_landmarks") == 16]
    assert draw_landmarks(one_count) is None


def test_make_tables_of_train_steps_are_by_task_with_its_sizes():
    sizes = {"what": "train step", "length": 64, "batch_size": 32}
    text = "\n".join(
        make_tables([row(task=task, **sizes) for task in ("text", "image")])
    )
    assert "| attention | text 32 × 64 | image 32 × 64 |" in text
    assert "| linear | 3 (2–4) | 3 (2–4) |" in text


def test_draw_curves_has_a_line_an_attention_in_each_panel():
    labels = ("nystrom-32", "linear", "hf-nystrom-64")
    rows = [row(x, n, what) for x in labels for n in (64, 128) for what in PASSES]
    figure = draw_curves(rows)
    assert len(figure.axes) == 4
    for axes, expected in zip(figure.axes, 2 * [[3, 3], [3, 3]], strict=True):
        assert [line.get_label() for line in axes.lines] == [*labels]
        assert [*axes.lines[0].get_xdata()] == [64, 128]
        assert [*axes.lines[0].get_ydata()] == expected


def test_draw_curves_has_ticks_with_numbers_whatever_the_range():
    for factor in (1.3, 8, 90, 900, 1e5):
        rows = [
            row("linear", length, what, scale)
            for what in PASSES
            for length, scale in ((128, 1), (512, factor))
        ]
        figure = draw_curves(rows)
        figure.canvas.draw()
        for axes in figure.axes:
            low, high = axes.get_ylim()
            labels = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
            shown = [x.get_text() for y, x in labels if low <= y <= high]
            assert 2 <= len(list(filter(None, shown))) <= 12, (factor, shown)
