"""What all tasks share: options checked and pinned, and the floor of the majority."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from lra_tasks.base import Task
from lra_tasks.split import DataError, Split


def split_of(labels):
    labels = np.array(labels, np.int32)
    rows = np.arange(len(labels), dtype=np.uint8)[:, None]
    return Split(rows, np.ones(len(labels), np.int32), labels)


@dataclass(frozen=True, kw_only=True)
class Toy(Task):
    name: ClassVar[str] = "toy"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 7
    num_classes: ClassVar[int] = 3
    max_length: int = 1
    share: float = 0.5
    source_dir: str | None = None

    def make_splits(self, data_dir):
        """Labels say which folder this was asked to look into."""
        found = sorted(path.name for path in data_dir.glob("archive*"))
        labels = [int(name[-1]) for name in found]
        return dict.fromkeys(("train", "validation", "test"), split_of(labels))

    def decode(self, tokens):
        return str(tokens)


@pytest.mark.parametrize("named", ["argument", "environment"])
def test_a_task_looks_for_archives_where_its_data_lie(tmp_path, monkeypatch, named):
    (tmp_path / "archive2").touch()
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path))
    data_dir = tmp_path if named == "argument" else None
    assert Toy().load("test", data_dir).labels.tolist() == [2]
    assert (tmp_path / "toy").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": "1"}, "toy: max_length must be int, not '1'"),
        ({"max_length": True}, "toy: max_length must be int, not True"),
        ({"share": 1}, "toy: share must be float, not 1"),
        ({"source_dir": 1}, r"toy: source_dir must be str \| None, not 1"),
    ],
)
def test_options_have_their_types(options, message):
    with pytest.raises(DataError, match=message):
        Toy(**options)


def test_a_source_dir_is_one_folder_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folders = {
        Toy(source_dir=name).folder(tmp_path)
        for name in ("real", "./real/", str(tmp_path / "real"), "link")
    }
    assert len(folders) == 1
    assert Toy().folder(tmp_path) not in folders


def test_the_majority_is_that_of_train():
    train, test = split_of([2, 2, 1, 0, 0, 2]), split_of([0, 2, 1, 0, 0])
    assert Toy().floors(train, test) == {"majority class": 1 / 5}
