"""Tables of rows made by hand."""

import dataclasses
import json
import os

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.speed.figures import draw_landmarks
from nystromformer.experiments.speed.page import (
    Page,
    fit_exponent,
    list_notes,
    list_paths,
    make_tables,
    write_benchmark,
    write_missing_pages,
)
from nystromformer.experiments.speed.timing import Program
from tests.experiments.speed.conftest import landmark_rows, make_key, make_row


@pytest.mark.parametrize("seconds", [{}, {4096: 1.0}, {512: 1, 1024: 2}])
def test_fit_exponent_needs_two_long_lengths(seconds):
    assert fit_exponent(seconds) == "—"


def test_make_tables_has_factors_of_softmax_exponents_and_gaps():
    row_without_time = dataclasses.replace(make_row("full", 2048), seconds=[])
    rows = [
        make_row("softmax", scale=20),
        make_row(),
        make_row(length=2048),
        row_without_time,
    ]
    text = "\n".join(make_tables(rows))
    assert "## Forward: ms\n\n| attention | 4,096 | 2,048 | exponent |" in text
    assert "| linear | 3 (2–4) · 20× | 3 (2–4) | 0.00 |" in text
    assert "| softmax | 60 (40–80) | — | — |" in text
    assert "| full | — | out of memory | — |" in text
    # This is a line of the table of memory.
    assert "| linear | 3 · 20× | 3 | 0.00 |" in text


def test_make_tables_writes_large_numbers_out():
    text = "\n".join(make_tables([make_row(scale=1000), make_row("softmax", scale=7)]))
    assert "| linear | 3,000 (2,000–4,000) · 0.0× | — |" in text
    assert "| linear | 3000 · 0.0× | — |" in text


def test_list_notes_explains_only_what_is_on_the_page():
    """A note about a row that is not there sends its reader to look for it."""
    ours = "\n".join(list_notes([make_row()], has_time=True))
    assert "as fast as softmax" in ours
    assert "Exponent: " in ours
    for words in ("PyTorch", "softmax_all_scores", "In N: ", "Published"):
        assert words not in ours
    rows = [make_row("torch-softmax"), make_row("softmax_all_scores")]
    notes = "\n".join(list_notes(rows, has_time=False))
    assert "PyTorch" in notes
    assert "less than softmax_all_scores" in notes
    assert "Time: " not in notes
    steps = [
        make_row("nystrom-64 in 4", task="text"),
        make_row("nystrom-64", task="text"),
    ]
    notes = "\n".join(list_notes(steps, has_time=True))
    assert "In N: " in notes
    assert "Exponent" not in notes


def test_make_tables_names_the_dtypes_and_sizes_that_differ_and_compares_equal_ones():
    wide = {"batch_size": 4, "num_heads": 16, "head_dim": 128, "options": {}}
    small = {**wide, "batch_size": 1}
    rows = []
    for scale, dtype in ((2, "float32"), (1, "bfloat16")):
        for name, factor in (("softmax,dropout_rate=0.0", 20), ("linear", 1)):
            rows.append(make_row(name, scale=scale * factor, dtype=dtype, **wide))
    rows.append(make_row("linear", dtype="bfloat16", **small))
    text = "\n".join(make_tables(rows))
    columns = "4 × 4,096 (16 heads of 128) | 1 × 4,096 (16 heads of 128) | exponent"
    assert f"| attention | {columns} |" in text
    assert "| linear, float32 | 6 (4–8) · 20× | — | — |" in text
    assert "| linear, bfloat16 | 3 (2–4) · 20× | 3 (2–4) | — |" in text
    assert draw_landmarks([*landmark_rows(16), *landmark_rows(64), *rows]) is None


def test_make_tables_shows_published_times_beside_ours_and_no_memory_of_them():
    published = make_row("Flash", source="a page")
    published = dataclasses.replace(published, seconds=[0.00367], peak_bytes=None)
    times, memory = "\n".join(make_tables([make_row(), published])).split(": MiB")
    assert "| Flash | 3.67 | — |" in times
    assert "Flash" not in memory


def test_list_paths_names_what_each_kernel_computes_and_where_it_falls_back():
    cudnn = "XLA, cuDNN's attention"
    rows = [
        make_row("linear", 512),
        dataclasses.replace(make_row("softmax", 512), path=cudnn),
        dataclasses.replace(make_row("softmax", 512, "forward+backward"), path=cudnn),
        make_row("softmax", 4096),
        dataclasses.replace(make_row("torch-softmax", 512), path=""),
    ]
    assert list_paths(rows) == [
        "- Computed by XLA: linear; softmax at 4,096",
        "- Computed by XLA, cuDNN's attention: softmax at 512",
    ]


def test_make_tables_of_memory_has_factors_of_all_scores_where_they_were_measured():
    rows = [
        make_row("softmax_all_scores", scale=60),
        make_row("softmax", scale=20),
        make_row(),
    ]
    lines = make_tables(rows)
    assert "| softmax | 60 (40–80) | — |" in lines
    assert "| linear | 3 (2–4) · 20× | — |" in lines
    assert "| softmax | 60 · 3.0× | — |" in lines
    assert "| linear | 3 · 60× | — |" in lines


def test_make_tables_without_time_is_of_memory_alone():
    rows = [
        dataclasses.replace(make_row("softmax", scale=2), seconds=[]),
        dataclasses.replace(make_row(), seconds=[]),
    ]
    lines = make_tables(rows, has_time=False)
    assert [line for line in lines if line.startswith("##")] == ["## Forward: MiB"]
    assert "| linear | 3 · 2.0× | — |" in lines


def test_make_tables_without_time_does_not_say_that_the_memory_was_too_small():
    """Nothing has run, and the memory of a program of PyTorch is unknown."""
    our_row = dataclasses.replace(make_row(), seconds=[])
    torch_row = dataclasses.replace(
        make_row("torch-softmax"), seconds=[], peak_bytes=None
    )
    lines = make_tables([our_row, torch_row], has_time=False)
    assert "| torch-softmax | — | — |" in lines


def test_make_tables_of_train_steps_are_by_task_with_its_sizes():
    sizes = {"what": "train step", "length": 64, "batch_size": 32}
    lines = make_tables(
        [make_row(task="text", **sizes), make_row(task="image", **sizes)]
    )
    assert "| attention | text 32 × 64 | image 32 × 64 |" in "\n".join(lines)
    assert "| linear | 3 (2–4) | 3 (2–4) |" in lines


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
    key = make_key("linear", what="train step", task="text")
    program = Program(key, run=lambda: None)

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
    key = make_key(name, what="train step", task="text")
    return Page([[Program(key, run=run)]])


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
