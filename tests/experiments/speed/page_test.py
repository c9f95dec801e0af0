"""Tables of rows made by hand."""

import itertools
import json
import os

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.plotting import attention_styles
from nystromformer.experiments.speed.page import (
    Page,
    draw_curves,
    draw_landmarks,
    draw_summary,
    fit_exponent,
    list_notes,
    list_paths,
    make_tables,
    write_benchmark,
    write_missing_pages,
)
from nystromformer.experiments.speed.timing import Program

PASSES = ("forward", "forward+backward")


def row(name="linear", length=4096, what="forward", *, scale=1, **key):
    """A measurement whose median is 3 milliseconds and 3 MiB, times the scale."""
    key |= {"what": what, "attention": name, "length": length}
    seconds = [scale * milliseconds / 1000 for milliseconds in (1, 2, 3, 4, 5)]
    peak_bytes = scale * 3 * 2**20
    return {"key": key, "peak_bytes": peak_bytes, "path": "XLA", "seconds": seconds}


def test_fit_exponent_is_of_the_power_and_of_long_lengths_alone():
    seconds = {length: 3 * length**1.5 for length in (2048, 4096, 16384)}
    assert fit_exponent({512: 1e9, **seconds}) == "1.50"


@pytest.mark.parametrize("seconds", [{}, {4096: 1.0}, {512: 1, 1024: 2}])
def test_fit_exponent_needs_two_long_lengths(seconds):
    assert fit_exponent(seconds) == "—"


def test_make_tables_has_factors_of_softmax_exponents_and_gaps():
    row_without_time = {**row("full", 2048), "seconds": []}
    rows = [row("softmax", scale=20), row(), row(length=2048), row_without_time]
    text = "\n".join(make_tables(rows))
    assert "## Forward: ms\n\n| attention | 4,096 | 2,048 | exponent |" in text
    assert "| linear | 3 (2–4) · 20× | 3 (2–4) | 0.00 |" in text
    assert "| softmax | 60 (40–80) | — | — |" in text
    assert "| full | — | out of memory | — |" in text
    # This is a line of the table of memory.
    assert "| linear | 3 · 20× | 3 | 0.00 |" in text


def test_make_tables_writes_large_numbers_out():
    text = "\n".join(make_tables([row(scale=1000), row("softmax", scale=7)]))
    assert "| linear | 3,000 (2,000–4,000) · 0.0× | — |" in text
    assert "| linear | 3000 · 0.0× | — |" in text


def test_list_notes_explains_only_what_is_on_the_page():
    """A note about a row that is not there sends its reader to look for it."""
    ours = "\n".join(list_notes([row()], has_time=True))
    assert "as fast as softmax" in ours
    assert "Exponent: " in ours
    for words in ("PyTorch", "softmax_all_scores", "In N: ", "Published"):
        assert words not in ours
    rows = [row("torch-softmax"), row("softmax_all_scores")]
    notes = "\n".join(list_notes(rows, has_time=False))
    assert "PyTorch" in notes
    assert "less than softmax_all_scores" in notes
    assert "Time: " not in notes
    steps = [row("nystrom-64 in 4", task="text"), row("nystrom-64", task="text")]
    notes = "\n".join(list_notes(steps, has_time=True))
    assert "In N: " in notes
    assert "Exponent" not in notes


def test_make_tables_names_the_dtypes_and_sizes_that_differ_and_compares_equal_ones():
    wide = {"batch_size": 4, "num_heads": 16, "head_dim": 128, "options": {}}
    small = {**wide, "batch_size": 1}
    rows = []
    for scale, dtype in ((2, "float32"), (1, "bfloat16")):
        for name, factor in (("softmax,dropout_rate=0.0", 20), ("linear", 1)):
            rows.append(row(name, scale=scale * factor, dtype=dtype, **wide))
    rows.append(row("linear", dtype="bfloat16", **small))
    text = "\n".join(make_tables(rows))
    columns = "4 × 4,096 (16 heads of 128) | 1 × 4,096 (16 heads of 128) | exponent"
    assert f"| attention | {columns} |" in text
    assert "| linear, float32 | 6 (4–8) · 20× | — | — |" in text
    assert "| linear, bfloat16 | 3 (2–4) · 20× | 3 (2–4) | — |" in text
    assert draw_landmarks([*landmark_rows(16), *landmark_rows(64), *rows]) is None


def test_make_tables_shows_published_times_beside_ours_and_no_memory_of_them():
    published = row("Flash", source="a page")
    published |= {"seconds": [0.00367], "peak_bytes": None}
    times, memory = "\n".join(make_tables([row(), published])).split(": MiB")
    assert "| Flash | 3.67 | — |" in times
    assert "Flash" not in memory


def test_list_paths_names_what_each_kernel_computes_and_where_it_falls_back():
    cudnn = "XLA, cuDNN's attention"
    rows = [
        row("linear", 512),
        {**row("softmax", 512), "path": cudnn},
        {**row("softmax", 512, "forward+backward"), "path": cudnn},
        row("softmax", 4096),
        {**row("torch-softmax", 512), "path": ""},
    ]
    assert list_paths(rows) == [
        "- Computed by XLA: linear; softmax at 4,096",
        "- Computed by XLA, cuDNN's attention: softmax at 512",
    ]


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


def test_make_tables_without_time_does_not_say_that_the_memory_was_too_small():
    """Nothing has run, and the memory of a program of PyTorch is unknown."""
    our_row = {**row(), "seconds": []}
    torch_row = {**row("torch-softmax"), "seconds": [], "peak_bytes": None}
    lines = make_tables([our_row, torch_row], has_time=False)
    assert "| torch-softmax | — | — |" in lines


def landmark_rows(num_landmarks):
    """Nyström attention at two lengths, with and without the convolution."""
    rows = []
    for kernel_size, name in ((0, ""), (35, " + convolution of 35")):
        options = {"num_landmarks": num_landmarks, "conv_kernel_size": kernel_size}
        for length, what in itertools.product((512, 2_048), PASSES):
            rows.append(
                row(
                    f"nystrom-{num_landmarks}{name}",
                    length,
                    what,
                    scale=num_landmarks,
                    options=options,
                )
            )
    return rows


def test_draw_landmarks_has_a_line_a_length_with_and_without_the_convolution():
    rows = [*landmark_rows(16), *landmark_rows(64), *landmark_rows(32)]
    rows.append(row("linear", 512, options={}))
    figure = draw_landmarks(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == [
            "nystrom, 512 tokens",
            "nystrom, 2,048 tokens",
            "nystrom + convolution of 35, 512 tokens",
            "nystrom + convolution of 35, 2,048 tokens",
        ]
        for line in axes.lines:
            # 3 milliseconds or MiB, times the number of landmarks.
            assert list(line.get_xdata()) == [16, 32, 64]
            assert list(line.get_ydata()) == [48, 96, 192]
    assert len(draw_landmarks(rows, has_time=False).axes) == 2


def test_draw_landmarks_draws_nothing_of_one_number_of_landmarks():
    assert draw_landmarks(landmark_rows(16)) is None


def test_make_tables_of_train_steps_are_by_task_with_its_sizes():
    sizes = {"what": "train step", "length": 64, "batch_size": 32}
    lines = make_tables([row(task="text", **sizes), row(task="image", **sizes)])
    assert "| attention | text 32 × 64 | image 32 × 64 |" in "\n".join(lines)
    assert "| linear | 3 (2–4) | 3 (2–4) |" in lines


def test_draw_curves_has_a_line_an_attention_in_each_panel():
    names = ["nystrom-32", "linear", "hf-nystrom-64"]
    rows = []
    for name, length, what in itertools.product(names, (64, 128), PASSES):
        rows.append(row(name, length, what))
    figure = draw_curves(rows)
    assert len(figure.axes) == 4
    for axes in figure.axes:
        assert [line.get_label() for line in axes.lines] == names
        assert list(axes.lines[0].get_xdata()) == [64, 128]
        assert list(axes.lines[0].get_ydata()) == [3, 3]
        assert [text.get_text() for text in axes.texts] == names
        styles = attention_styles(names)
        assert [x.get_color() for x in axes.lines] == [
            styles[name]["color"] for name in names
        ]


def test_draw_summary_has_five_lines_of_time_and_of_memory():
    names = ["softmax_all_scores", "softmax", "nystrom-64", "linear", "identity"]
    rows = []
    for name, length in itertools.product(names, (64, 128)):
        rows.append(row(name, length, "forward+backward"))
    assert draw_summary(rows[:-4]) is None  # without linear
    torch_rows = [row("torch-softmax", n, "forward+backward") for n in (64, 128)]
    rows += [{**x, "peak_bytes": None} for x in torch_rows]
    time, memory = draw_summary(rows).axes
    exact = ["exact, at once", "exact, in blocks"]
    others = ["nystrom-64", "linear"]
    assert [text.get_text() for text in memory.texts] == exact + others
    assert {text.get_text() for text in time.texts} == {
        *exact,
        *others,
        "exact, PyTorch",
    }
    assert len({line.get_color() for line in time.lines}) == 3


def tick_labels(axes):
    """The labels beside the visible part of the vertical axis."""
    low, high = axes.get_ylim()
    labels = []
    for place, label in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        if low <= place <= high and label.get_text():
            labels.append(label.get_text())
    return labels


@pytest.mark.parametrize("factor", [1.3, 8, 90, 900, 1e5])
def test_draw_curves_has_ticks_with_numbers_whatever_the_range(factor):
    rows = []
    for what in PASSES:
        rows.append(row("linear", 128, what))
        rows.append(row("linear", 512, what, scale=factor))
    figure = draw_curves(rows)
    figure.canvas.draw()
    for axes in figure.axes:
        assert 2 <= len(tick_labels(axes)) <= 12, tick_labels(axes)


def test_write_benchmark_refuses_a_folder_before_the_first_program_is_made(tmp_path):
    (tmp_path / "thesis.md").touch()

    def groups():
        raise AssertionError("a program was made")
        yield []

    with pytest.raises(ConfigError, match="contains files of something else"):
        write_benchmark(Page(groups()), tmp_path, rounds=1)


def test_write_benchmark_replaces_its_files_as_a_whole(tmp_path):
    """Whoever stops it finds the files of the groups that were measured before."""
    out = tmp_path / "out"
    key = {"what": "train step", "attention": "linear", "task": "text"}
    program = Program({**key, "length": 8, "batch_size": 2}, run=lambda: None)

    def groups():
        yield [program]
        for name in ("benchmark.json", "README.md"):
            os.link(out / name, tmp_path / name)
        yield [program]

    write_benchmark(Page(groups()), out, rounds=1)
    # The files of the first group have not been written to.
    assert len(json.loads((tmp_path / "benchmark.json").read_text())["rows"]) == 1
    assert len(json.loads((out / "benchmark.json").read_text())["rows"]) == 2
    assert not os.path.samefile(out / "README.md", tmp_path / "README.md")
    assert sorted(os.listdir(out)) == ["README.md", "benchmark.json"]


def step_page(name, run=lambda: None):
    """A page of one program."""
    key = {"what": "train step", "attention": name, "task": "text"}
    return Page([[Program({**key, "length": 8, "batch_size": 2}, run=run)]])


def test_write_missing_pages_goes_on_where_it_was_stopped(tmp_path):
    def stop():
        raise KeyboardInterrupt

    pages = {"first": step_page("linear"), "second": step_page("softmax", stop)}
    with pytest.raises(KeyboardInterrupt):
        write_missing_pages(pages, tmp_path, rounds=1)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"first", "second.unfinished"}

    pages = {"first": step_page("linear", stop), "second": step_page("softmax")}
    write_missing_pages(pages, tmp_path, rounds=1)
    assert {path.name for path in tmp_path.iterdir()} == {"first", "second"}
    assert (tmp_path / "second" / "benchmark.json").exists()


def test_write_missing_pages_refuses_a_folder_with_other_files(tmp_path):
    (tmp_path / "first").mkdir()
    write_missing_pages({"first": step_page("linear")}, tmp_path, rounds=1)
    other = tmp_path / "second"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(ConfigError, match="second has no benchmark"):
        write_missing_pages({"second": step_page("linear")}, tmp_path, rounds=1)
