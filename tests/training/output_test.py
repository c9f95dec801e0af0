"""metrics.jsonl, TensorBoard events, and the progress in a log file."""

import io
import json
import struct
import sys

import pytest
from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

from nystromformer.errors import ConfigError
from nystromformer.run_files import write_text
from nystromformer.training import output
from nystromformer.training.output import Bar, MetricsWriter, Progress, say
from tests.full_disk import full_disk


def read_rows(workdir):
    """Step, split and loss of each row of metrics.jsonl."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["split"], row["loss"]) for row in rows]


def read_events(workdir):
    """The bytes of the event files of TensorBoard."""
    return b"".join(path.read_bytes() for path in (workdir / "events").iterdir())


@pytest.mark.parametrize(("evaluated_step", "num_rows"), [(2, 2), (4, 3)])
def test_metrics_writer_drops_rows_after_the_checkpoint(
    tmp_path, evaluated_step, num_rows
):
    """The checkpoint is of step 4, and may be from before the validation there."""
    rows = [
        (2, "validation", 0.7),
        (4, "train", 0.1),
        (4, "validation", 1 / 3),
        (4, "test", 0.4),
        (5, "train", 0.6),
        (5, "test", 0.7),
    ]
    writer = MetricsWriter(tmp_path)
    for step, split, loss in rows:
        writer.write(step, split, {"loss": loss})
        assert read_rows(tmp_path)[-1] == (step, split, loss)
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "split": "train", "lo')  # killed while it wrote

    writer = MetricsWriter(tmp_path, 4, evaluated_step)
    writer.write(5, "train", {"loss": 0.5})
    writer.close()
    assert read_rows(tmp_path) == [*rows[:num_rows], (5, "train", 0.5)]
    content = read_events(tmp_path)
    purge = Event(step=5, session_log={"status": 1}).SerializeToString()
    assert b"train/loss" in content
    assert purge in content


@pytest.mark.parametrize("content", [b"\0\0\n", b'{"step": 5, "sp\xc3\n'])
def test_metrics_writer_names_a_file_with_a_damaged_line(tmp_path, content):
    """After a power failure, zeros may stand in place of what was written last."""
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/metrics\.jsonl cannot be used"):
        MetricsWriter(tmp_path)


def test_write_text_leaves_the_old_file_whole_to_whoever_reads_it(tmp_path):
    path = tmp_path / "result.json"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_write_text_to_a_full_disk_leaves_no_half_of_a_file(tmp_path):
    """It would be taken for a file of something else, and the folder refused."""
    path = tmp_path / "config.json"
    with full_disk(), pytest.raises(OSError, match=f"File too large: '{path}'"):
        write_text(path, "x" * 60_000)
    assert not list(tmp_path.iterdir())


def test_say_keeps_no_line_back(monkeypatch):
    """A log is read while a run goes on."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    say("step 5")
    assert written.getvalue() == b"step 5\n"


def test_the_speed_of_a_run_is_the_median_of_its_rows(tmp_path):
    """A chunk now and then is slow, as another program runs beside it."""
    writer = MetricsWriter(tmp_path)
    for step, speed in enumerate((500.0, 10.0, 520.0)):
        writer.write(step, "train", {"loss": 0.5, "examples_per_second": speed})
    writer.write(3, "validation", {"loss": 0.5})
    writer.close()
    assert writer.median("examples_per_second") == 500


def test_metrics_writer_adds_to_the_file_and_copies_no_row(tmp_path):
    """A long run would copy each row thousands of times."""
    writer = MetricsWriter(tmp_path)
    writer.write(1, "train", {"loss": 0.5})
    file = (tmp_path / "metrics.jsonl").stat().st_ino
    writer.write(2, "train", {"loss": 0.25})
    writer.close()
    assert (tmp_path / "metrics.jsonl").stat().st_ino == file
    assert read_rows(tmp_path) == [(1, "train", 0.5), (2, "train", 0.25)]


def events(folder):
    """(tag, step) -> value.

    A record has 8 bytes of its event's length, 4 of a CRC, the event and 4 of a CRC.
    """
    values = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        start = 0
        while start < len(content):
            (length,) = struct.unpack_from("<Q", content, start)
            start += 12
            event = Event.FromString(content[start : start + length])
            start += length + 4
            for value in event.summary.value:
                values[value.tag, event.step] = value.simple_value
    return values


def test_tensorboard_has_each_value_at_the_step_of_its_row(tmp_path):
    writer = MetricsWriter(tmp_path, step=10)
    for step in (15, 20):
        writer.write(step, "train", {"loss": 1 / step, "accuracy": step / 64})
    writer.write(20, "validation", {"loss": 2 / 3})
    writer.close()
    expected = {
        ("train/loss", 15): 1 / 15,
        ("train/loss", 20): 1 / 20,
        ("train/accuracy", 15): 15 / 64,
        ("train/accuracy", 20): 20 / 64,
        ("validation/loss", 20): 2 / 3,
    }
    assert events(tmp_path / "events") == pytest.approx(expected)


def test_tensorboard_knows_the_settings_of_the_run(tmp_path):
    settings = {"train.seed": 3, "attention.name": "nystrom", "task.data_dir": None}
    writer = MetricsWriter(tmp_path, settings=settings, score="accuracy")
    writer.write(5, "validation", {"accuracy": 0.5})
    writer.close()
    content = read_events(tmp_path)
    for text in (b"train.seed", b"attention.name", b"nystrom", b"validation/accuracy"):
        assert text in content


def lines_of_progress(capsys):
    """What is printed after a step that took two seconds, with nineteen to go."""
    progress = Progress(step=10, num_steps=30)
    progress.bar.start_t -= 2.0
    progress.update(11, {"loss": 0.25}, 1234.5)
    lines = capsys.readouterr().out.splitlines()
    progress.bar.close()
    return lines


def test_progress_without_a_terminal_is_a_line_every_few_seconds(capsys, monkeypatch):
    monkeypatch.setattr(output, "SECONDS_PER_LINE", 3600.0)
    assert lines_of_progress(capsys) == []

    monkeypatch.setattr(output, "SECONDS_PER_LINE", 0.0)
    (line,) = lines_of_progress(capsys)
    assert "11/30" in line
    assert "loss 0.25  1,234 examples/s" in line
    assert "00:38" in line


def test_a_bar_without_a_terminal_shows_what_is_urgent_at_once(capsys):
    bar = Bar(0, 4, seconds_per_line=3600.0)
    bar.show(1, "first")
    bar.show(2, "second", at_once=True)
    bar.close()
    [line] = capsys.readouterr().out.splitlines()
    assert "2/4" in line
    assert "second" in line


class Terminal(io.StringIO):
    """A terminal that keeps what is shown."""

    def isatty(self):
        return True


@pytest.mark.parametrize("is_first", [True, False])
def test_progress_is_shown_by_the_first_process_alone(monkeypatch, is_first):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "is_host_0", lambda: is_first)
    progress = Progress(step=10, num_steps=30)
    progress.update(11, {"loss": 0.25}, 1234.5)
    progress.close()
    if is_first:
        assert "10/30" in terminal.getvalue()
    else:
        assert terminal.getvalue() == ""
