"""What a run leaves behind: whole JSON files, and lines that a resumed run cuts off."""

import json
import os

import pytest

from nystromformer.training.files import (
    MetricsWriter,
    first_line,
    write_json,
    write_text,
)
from tests.archive_server import full_disk


def read_lines(workdir):
    text = (workdir / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_lines_are_on_disk_as_soon_as_they_are_written(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(5, "train", {"loss": 0.5})
    assert read_lines(tmp_path) == [{"step": 5, "split": "train", "loss": 0.5}]
    assert writer.num_bytes() == (tmp_path / "metrics.jsonl").stat().st_size
    writer.close()


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(5, "train", {"loss": 0.5})
    belongs = writer.num_bytes()
    writer.write(6, "train", {"loss": 0.4})
    writer.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "spl')  # killed while writing

    writer = MetricsWriter(tmp_path, belongs, step=5)
    assert writer.num_bytes() == belongs
    writer.write(6, "train", {"loss": 0.3})
    writer.close()
    assert [line["loss"] for line in read_lines(tmp_path)] == [0.5, 0.3]


def test_half_a_line_on_a_full_disk_is_an_error_and_not_kept(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(5, "train", {"loss": 0.5})
    limit = writer.num_bytes() + 7
    with full_disk(limit), pytest.raises(OSError, match="No space left"):
        writer.write(6, "train", {"loss": 0.4})
    writer.close()
    assert [line["step"] for line in read_lines(tmp_path)] == [5]


def test_a_link_is_never_written_through(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("theirs\n")
    (tmp_path / "metrics.jsonl").symlink_to(target)
    with pytest.raises(OSError, match=r"metrics\.jsonl is a link; delete it"):
        MetricsWriter(tmp_path)
    assert target.read_text() == "theirs\n"


def test_text_is_on_disk_before_it_takes_the_place_of_what_was_there(
    tmp_path, monkeypatch
):
    path = tmp_path / "README.md"
    write_text(path, "α\n")

    def fail(descriptor):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_text(path, "β\n")
    assert path.read_bytes() == "α\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_json_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"accuracy": 1})
    with pytest.raises(TypeError):
        write_json(path, {"accuracy": object()})
    assert json.loads(path.read_text()) == {"accuracy": 1}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n one \n two"), "one "),
        (KeyError(), "KeyError"),
        (ValueError("x" * 401), "x" * 400),
    ],
)
def test_an_error_is_its_first_line_or_its_type(error, line):
    assert first_line(error) == line
