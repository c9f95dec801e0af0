"""metrics.jsonl, TensorBoard events, the progress in a log file and its pace."""

import json

import pytest
from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

from nystromformer.training import metrics
from nystromformer.training.metrics import (
    ChunkTimer,
    MetricsWriter,
    Progress,
    write_text,
)


def read_rows(workdir):
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_metrics_writer_writes_each_row_at_once(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(5, "train", {"loss": 0.1})
    assert read_rows(tmp_path) == [{"step": 5, "split": "train", "loss": 0.1}]
    writer.close()
    (events,) = (tmp_path / "events").iterdir()
    assert b"train/loss" in events.read_bytes()
    assert [x.name for x in tmp_path.glob("metrics*")] == ["metrics.jsonl"]


@pytest.mark.parametrize(("evaluated", "kept"), [(2, 1), (4, 2)])
def test_metrics_writer_drops_rows_after_the_checkpoint(tmp_path, evaluated, kept):
    writer = MetricsWriter(tmp_path)
    rows = [(2, "validation"), (4, "train"), (4, "validation"), (5, "train")]
    for step, split in [*rows, (5, "test")]:
        writer.write(step, split, {"loss": step / 3})
    writer.close()
    writer = MetricsWriter(tmp_path, 4, evaluated)
    writer.write(5, "train", {"loss": 0.5})
    writer.close()
    found = [(row["step"], row["split"]) for row in read_rows(tmp_path)]
    assert found == [*rows[:2], *rows[2 : 1 + kept], (5, "train")]
    purged = Event(step=5, session_log={"status": 1}).SerializeToString()
    written = [path.read_bytes() for path in (tmp_path / "events").iterdir()]
    assert any(purged[-4:] in content for content in written)


def test_metrics_writer_raises_where_the_workdir_was_deleted(tmp_path):
    writer = MetricsWriter(tmp_path)
    writer.write(5, "train", {"loss": 0.5})
    (tmp_path / "metrics.jsonl").unlink()  # the folder may be made again by orbax
    with pytest.raises(FileNotFoundError, match="was deleted while this run trained"):
        writer.write(6, "train", {"loss": 0.4})
    writer.close()


def test_metrics_writer_writes_to_a_bucket_without_events(bucket):
    for loss in (0.5, 0.4):
        writer = MetricsWriter(bucket, step=int(loss == 0.4))
        writer.write(1 + int(loss == 0.4), "train", {"loss": loss})
        writer.close()
    assert [row["loss"] for row in read_rows(bucket)] == [0.5, 0.4]
    assert [path.name for path in bucket.iterdir()] == ["metrics.jsonl"]


def test_write_text_leaves_the_old_text_where_it_fails(tmp_path):
    path = tmp_path / "README.md"
    write_text(path, "α\n")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "β\n\ud800")
    assert path.read_bytes() == "α\n".encode()


def test_progress_without_a_terminal_is_a_line_every_few_seconds(capsys, monkeypatch):
    progress = Progress(step=10, num_steps=30)
    progress.update(11, {"loss": 0.25}, 1234.5)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(Progress, "SECONDS_BETWEEN_LINES", 0.0)
    progress.started -= 2.0  # two seconds for one step, eighteen to go
    progress.update(12, {"loss": 0.25}, 1234.5)
    progress.say("validated")
    progress.close()
    line, said = capsys.readouterr().out.splitlines()
    assert line.startswith("step 12/30  loss 0.25  1,234 examples/s  36 s left")
    assert said == "validated"


def test_chunk_timer_aims_at_a_second_once_the_program_is_compiled(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now[0])
    timer = ChunkTimer(max_size=64)
    sizes = []
    for seconds in (20.0, 0.1, 1.0, 20.0, 1e-9):
        with timer.measure(timer.size):
            now[0] += seconds
        sizes.append(timer.size)
    assert sizes == [1, 10, 10, 1, 64]
