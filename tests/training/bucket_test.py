"""A run's files in a bucket: whole objects, and never a rename or an append."""

import json

import pytest
from etils import epath
from etils.epath import backend
from fsspec.implementations.memory import MemoryFileSystem

from nystromformer.training import files
from nystromformer.training.arrays import digest
from nystromformer.training.checkpoint import Checkpoints
from nystromformer.training.files import MetricsWriter, ObjectFile
from tests.training.states import ABSTRACT, best_of, make_state


class Bucket(MemoryFileSystem):
    """Objects in memory, and how often one was written; moves nothing."""

    store = {}
    pseudo_dirs = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("gs://"))

    def open(self, path, mode="rb", **options):
        assert "a" not in mode
        return super().open(path, mode, **options)

    def mv(self, *args, **options):
        raise AssertionError("a bucket cannot rename")


@pytest.fixture
def run(monkeypatch):
    """gs://bucket/run, in memory."""
    monkeypatch.setattr(Bucket, "store", {})
    monkeypatch.setattr(Bucket, "pseudo_dirs", [""])
    store = Bucket(skip_instance_cache=True)
    monkeypatch.setattr(backend._FileSystemSpecBackend, "fs", lambda self, _: store)
    return epath.Path("gs://bucket/run")


def test_lines_are_there_now_and_then_and_when_it_matters(run, monkeypatch):
    monkeypatch.setattr(files, "SECONDS_BETWEEN_WRITES", 1e6)
    writer = MetricsWriter(run)
    metrics = run / "metrics.jsonl"
    writer.write(1, "train", {"loss": 0.5})
    assert metrics.read_text().count("\n") == 1  # the first at once
    writer.write(2, "train", {"loss": 0.4})
    assert metrics.read_text().count("\n") == 1
    assert writer.num_bytes() == len(metrics.read_bytes())  # as a checkpoint asks
    assert metrics.read_text().count("\n") == 2
    writer.write(3, "train", {"loss": 0.3})
    writer.close()
    assert metrics.read_text().count("\n") == 3
    assert [path.name for path in run.iterdir()] == ["metrics.jsonl"]


def test_a_resumed_run_cuts_off_what_came_after_its_checkpoint(run):
    writer = MetricsWriter(run)
    writer.write(5, "train", {"loss": 0.5})
    belongs = writer.num_bytes()
    writer.write(6, "train", {"loss": 0.4})
    writer.close()
    writer = MetricsWriter(run, belongs, step=5)
    assert writer.num_bytes() == belongs
    writer.write(6, "train", {"loss": 0.3})
    writer.close()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [0.5, 0.3]


def test_what_a_library_of_a_cloud_raises_is_an_error_of_the_system(run, monkeypatch):
    class HttpError(Exception):
        pass

    def refuse(*args):
        raise HttpError("forbidden\nmore")

    file = ObjectFile(run / "metrics.jsonl")
    monkeypatch.setattr(epath.Path, "write_bytes", refuse)
    assert file.write(b"line\n") == 5
    with pytest.raises(
        OSError, match=r"^gs://bucket/run/metrics\.jsonl: forbidden: more$"
    ):
        file.flush()
    monkeypatch.setattr(type(run), "exists", refuse)
    with pytest.raises(OSError, match="forbidden"):
        MetricsWriter(run)


def test_a_line_that_is_refused_is_kept_and_ends_nothing_but_a_checkpoint(
    run, monkeypatch
):
    writer = MetricsWriter(run)
    metrics = run / "metrics.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(epath.Path, "write_bytes", lambda *_: 1 / 0)
        writer.write(1, "train", {"loss": 0.5})
        with pytest.raises(OSError, match="division by zero"):
            writer.num_bytes()
    assert not metrics.exists()
    writer.write(2, "train", {"loss": 0.4})
    assert writer.num_bytes() == len(metrics.read_bytes())
    assert metrics.read_text().count("\n") == 2
    monkeypatch.setattr(epath.Path, "write_bytes", lambda *_: 1 / 0)
    writer.close()
    writer = MetricsWriter(run, num_bytes=3)
    with pytest.raises(OSError, match="division by zero"):
        writer.num_bytes()
    writer.close()  # which would hide why the run ends


def test_checkpoints_are_objects(run):
    checkpoints = Checkpoints(run)
    for step in (10, 20, 30):
        checkpoints.save(step, make_state(step), {}, best_of(step))
    assert sorted(path.name for path in run.iterdir()) == ["best", "checkpoints"]
    state, _, (step, _) = Checkpoints(run).restore(ABSTRACT)
    assert (digest(state), step) == (digest(make_state(30)), 25)
    checkpoints.finish(25)
    assert [path.name for path in (run / "best").iterdir()] == ["25.safetensors"]
