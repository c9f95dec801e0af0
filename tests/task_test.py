"""The table of tasks, what its door turns away, and a task of a user's own."""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from lra_tasks.split import Split
from lra_tasks.task import TASKS, DataError, Task, get_task, register_task


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_what_a_model_must_know(name):
    task = get_task(name)
    assert task.name == name
    assert task.num_inputs in (1, 2)
    assert min(task.vocab_size, task.num_classes, task.max_length) >= 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("listop", {}, "unknown task 'listop': one of listops"),
        ("listops", {"sead": 1}, "no option sead: its options are .*max_length"),
        ("listops", {"num_train": 1.5}, "num_train must be int, not 1.5"),
        ("listops", {"num_train": True}, "num_train must be int, not True"),
        ("listops", {"source_dir": 3}, r"source_dir must be str \| None, not 3"),
        ("listops", {"seed": -1}, "seed must be at least 0, not -1"),
        ("image", {"max_length": 512}, "max_length must be 1024, all pixels"),
        ("text", {"max_length": 0}, "max_length must be at least 1"),
        ("text", {"max_length": 2, "tokenizer": "byte"}, "must be at least 3"),
        ("text", {"tokenizer": "byte", "num_bytes": 9}, "num_bytes is for bytes"),
        ("corpus", {"vocab_size": 200}, "vocab_size must be 261 to 65536, not 200"),
        ("corpus", {"pattern": "/texts/*"}, "pattern must be relative to source_dir"),
        ("listops", {"max_depth": 1}, "max_depth must be at least 2"),
        ("listops", {"max_length": 64}, "min_tokens must be 4 .* to 64"),
    ],
)
def test_what_is_turned_away(name, options, message):
    with pytest.raises(DataError, match=message):
        get_task(name, **options)


def test_a_source_dir_is_one_folder_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = (None, "real", "./real/", str(tmp_path / "real"), "link")
    tasks = [get_task("listops", source_dir=name) for name in names]
    assert len({task.folder(tmp_path) for task in tasks}) == 2


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("listops", ["[MAX 3 4 ]", "[SM 3 [MIN 0 9 ] ]"]),
        ("text", ["naïve", "日本<br />"]),
        ("retrieval", ["one paper", "another"]),
        ("glue", ["a fine film", "one"]),
    ],
)
def test_texts_become_inputs_and_come_back(name, texts):
    task = get_task(name)
    inputs, lengths = task.encode(texts)
    assert inputs.shape == (2, task.max_length)
    back = [task.decode(row[:n]) for row, n in zip(inputs, lengths, strict=True)]
    wrapped = [f"[CLS] {text} [SEP]" for text in texts]
    assert back == (wrapped if name == "glue" else texts)
    with pytest.raises(DataError, match="image: its inputs are not made from text"):
        get_task("image").encode(texts)


def test_an_unknown_split_is_turned_away_before_any_work(tmp_path):
    with pytest.raises(DataError, match="'val': one of train, validation, test"):
        get_task("listops").load("val", tmp_path)
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True, kw_only=True)
class Twins(Task):
    """Of a user's own: are the first two tokens equal?"""

    name: ClassVar[str] = "twins"
    data_version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 5
    num_classes: ClassVar[int] = 2
    max_length: int = 7
    seed: int = 0

    def make_splits(self, data_dir):
        splits = {}
        for name, rows in (("train", 211), ("validation", 11), ("test", 13)):
            draw = np.random.default_rng(rows + self.seed)
            inputs = draw.integers(1, 5, (rows, self.max_length)).astype(np.uint8)
            splits[name] = Split.of_pictures(inputs, inputs[:, 0] == inputs[:, 1])
        return splits


def test_a_task_of_ones_own_is_a_task_as_any(tmp_path, monkeypatch):
    monkeypatch.setattr("lra_tasks.task.TASKS", dict(TASKS))
    register_task("twins", Twins)
    task = get_task("twins", max_length=5)
    train = task.load("train", tmp_path)
    assert train.inputs.shape == (211, 5)
    assert task.floors(train, task.load("test", tmp_path)).keys() == {"majority class"}
    with pytest.raises(DataError, match="twins has no option length: its options are"):
        get_task("twins", length=5)
    with pytest.raises(DataError, match=r"the name 'text' is taken by .*Text"):
        register_task("text", Twins)
    again = type("Twins", (Twins,), {})  # the file imported again, under another name
    again.__qualname__, again.__module__ = Twins.__qualname__, "config_twins"
    monkeypatch.setitem(sys.modules, "config_twins", sys.modules[Twins.__module__])
    register_task("twins", again)
