"""metrics.jsonl, TensorBoard events, and the progress in a log file."""

import json
import struct

import pytest
from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

from nystromformer.training import output
from nystromformer.training.output import MetricsWriter, Progress


def written_rows(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["split"], row["loss"]) for row in rows]


@pytest.mark.parametrize(("evaluated", "kept"), [(2, 2), (4, 3)])
def test_metrics_writer_drops_rows_after_the_checkpoint(tmp_path, evaluated, kept):
    writer = MetricsWriter(tmp_path)
    rows = [(2, "validation", 0.7), (4, "train", 0.1), (4, "validation", 1 / 3)]
    for step, split, loss in [*rows, (5, "train", 0.6), (5, "test", 0.7)]:
        writer.write(step, split, {"loss": loss})
        assert written_rows(tmp_path)[-1] == (step, split, loss)
    writer.close()
    writer = MetricsWriter(tmp_path, 4, evaluated)
    writer.write(5, "train", {"loss": 0.5})
    writer.close()
    assert written_rows(tmp_path) == [*rows[:kept], (5, "train", 0.5)]
    content = b"".join(path.read_bytes() for path in (tmp_path / "events").iterdir())
    purged = Event(step=5, session_log={"status": 1}).SerializeToString()
    assert b"train/loss" in content
    assert purged[-4:] in content


def events(folder):
    """Tag and step -> value, of the records (length, its CRC, event, its CRC)."""
    values = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        start = 0
        while start < len(content):
            (length,) = struct.unpack_from("<Q", content, start)
            event = Event.FromString(content[start + 12 : start + 12 + length])
            start += 12 + length + 4
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
    content = b"".join(path.read_bytes() for path in (tmp_path / "events").iterdir())
    for text in (b"train.seed", b"attention.name", b"nystrom", b"validation/accuracy"):
        assert text in content


def test_progress_without_a_terminal_is_a_line_every_few_seconds(capsys, monkeypatch):
    for seconds, lines in ((3600.0, 0), (0.0, 1)):
        monkeypatch.setattr(output, "SECONDS_PER_LINE", seconds)
        progress = Progress(step=10, num_steps=30)
        progress.bar.start_t -= 2.0  # two seconds for one step, eighteen to go
        progress.update(11, {"loss": 0.25}, 1234.5)
        out = capsys.readouterr().out.splitlines()
        progress.bar.close()
        assert len(out) == lines
    assert "11/30" in out[0]
    assert "loss 0.25  1,234 examples/s" in out[0]
    assert "00:38" in out[0]
