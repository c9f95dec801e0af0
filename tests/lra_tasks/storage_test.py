"""Prepared data through what happens to disks and processes; rows that stay there."""

import dataclasses
import json
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.task import get_task
from tests.full_disk import full_disk
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.small_corpus import corpus

SHORT = {"max_length": 64, "min_tokens": 10, "num_validation": 101, "num_test": 211}


RETRIEVAL = {
    f"new_aan_pairs.{name}.tsv": f"1\tA\tB\tone {name}\ttwo\n".encode()
    for name in ("train", "eval", "test")
}


def toy(num_train=997, **options):
    return get_task("listops", num_train=num_train, **SHORT, **options)


# Plain tensorflow-datasets: neither this package nor TensorFlow is there.
PLAIN = """
import json, sys
import tensorflow_datasets as tfds
builder = tfds.builder_from_directory(sys.argv[1])
rows = [[r["tokens"].tolist(), int(r["label"])] for r in builder.as_data_source("test")]
info, features = builder.info, builder.info.features
assert not {"lra_tasks", "tensorflow"} & set(sys.modules)
print(json.dumps({
    "rows": rows,
    "description": info.description,
    "homepage": info.homepage,
    "citation": info.citation,
    "options": info.metadata["options"],
    "vocab_size": info.metadata["vocab_size"],
    "token_ids": info.metadata["token_ids"],
    "dtype": str(features["tokens"].np_dtype),
    "labels": features["label"].names,
}))
"""


def test_a_prepared_folder_is_read_by_plain_tfds(tmp_path, capfd):
    task = toy(seed=3)
    test = task.load("test", tmp_path)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["lra_listops"]

    command = [sys.executable, "-c", PLAIN, str(task.folder(tmp_path))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "rows": [[tokens.tolist(), label] for tokens, label in test],
        "description": task.description,
        "homepage": task.homepage,
        "citation": task.citation,
        "options": dataclasses.asdict(task),
        "vocab_size": 16,
        "token_ids": "0 <pad>, 1 [MIN, 2 [MAX, 3 [MED, 4 [SM, 5 ], 6 0, 7 1, 8 2, 9 3, "
        "10 4, 11 5, 12 6, 13 7, 14 8, 15 9",
        "dtype": "uint8",
        "labels": list("0123456789"),
    }


# The program prints a line when it starts to prepare, and the hash of what it read.
PROCESS = """
import sys
from lra_tasks.listops import ListOps

class Loud(ListOps):
    def make_splits(self, data_dir):
        print("making", flush=True)
        return super().make_splits(data_dir)

task = Loud(num_train=20_000, max_length=64, min_tokens=10)
print(task.load("train", sys.argv[1]).content_hash)
"""


def start(data_dir):
    """Starts PROCESS on a folder."""
    command = [sys.executable, "-W", "error", "-c", PROCESS, str(data_dir)]
    return subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_two_processes_prepare_once(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    outputs = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        outputs.append(stdout)
    assert sorted(output.count("making") for output in outputs) == [0, 1]
    assert len({output.split()[-1] for output in outputs}) == 1


def test_a_killed_preparation_is_made_again(tmp_path):
    process = start(tmp_path)
    while not any(tmp_path.glob("*/*/incomplete.*/*array_record*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert any(tmp_path.glob("*/*/incomplete.*"))

    stdout, _ = start(tmp_path).communicate(timeout=60)

    assert stdout.startswith("making")
    (config,) = tmp_path.glob("lra_listops/*")
    assert sorted(path.name for path in config.iterdir()) == ["1.0.0", "lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    task = toy(5003)
    with full_disk(2**16), pytest.raises(OSError, match="File too large") as caught:
        task.load("train", tmp_path)
    assert str(task.folder(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)
    leftovers = task.folder(tmp_path).parent.iterdir()
    assert [path.name for path in leftovers] == ["lock"]
    assert task.load("train", tmp_path).num_examples == 5003


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut_in_half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def remove(path):
    path.unlink()


def assert_refuses_to_load(task, data_dir):
    """Checks that the error is one line that names the prepared folder."""
    with pytest.raises(DataError, match="delete that folder and run again") as caught:
        task.load("train", data_dir)
    assert str(task.folder(data_dir)) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "pattern"),
    [
        (flip_a_bit, "*-train.*"),
        (cut_in_half, "*-train.*"),
        (remove, "*-train.*"),
        (remove, "dataset_info.json"),
        (cut_in_half, "dataset_info.json"),
    ],
)
def test_load_refuses_damaged_files(tmp_path, damage, pattern):
    task = toy()
    task.load("train", tmp_path)
    (file,) = task.folder(tmp_path).glob(pattern)
    damage(file)
    assert_refuses_to_load(task, tmp_path)


def test_load_refuses_a_foreign_folder(tmp_path):
    task = toy()
    write(task.folder(tmp_path), {"dataset_info.json": b"{}"})
    assert_refuses_to_load(task, tmp_path)


def test_load_refuses_the_data_of_another_task(tmp_path):
    task = toy()
    other = get_task("retrieval")
    write(tmp_path / "other/tsv_data", RETRIEVAL)
    other.load("train", tmp_path / "other")
    shutil.copytree(other.folder(tmp_path / "other"), task.folder(tmp_path))
    assert_refuses_to_load(task, tmp_path)


@pytest.mark.parametrize("error", [ImportError, PermissionError, AttributeError])
def test_load_blames_the_data_for_nothing_else(tmp_path, monkeypatch, error):
    """An error of a library is none of the data's; a stand-in raises it."""
    toy().load("train", tmp_path)

    def fail(_):
        raise error("array_record is not installed")

    monkeypatch.setattr(tfds, "builder_from_directory", fail)
    with pytest.raises(error, match=r"^array_record is not installed$"):
        toy().load("train", tmp_path)


@pytest.fixture
def train(tmp_path, texts):
    return corpus(texts).load("train", tmp_path)


def test_rows_on_disk_are_indexed_as_an_array_is(train):
    rows = train.inputs[:]
    mask = train.labels == 1
    numbers = np.array([[-1, 3], [0, 3]], np.int16)
    for index in (mask, mask.tolist(), numbers, -2, np.int64(4), slice(9, None, -2)):
        np.testing.assert_array_equal(train.inputs[index], rows[index])
    np.testing.assert_array_equal(list(train.inputs), rows)


def test_rows_on_disk_refuse_an_index_that_an_array_refuses(train):
    num_rows = len(train.inputs)
    short_mask = np.ones(num_rows - 1, bool)
    for index in (num_rows, [0, -num_rows - 1], np.array([1.0]), short_mask):
        with pytest.raises(IndexError):
            train.inputs[index]


def test_a_split_on_disk_does_what_one_in_memory_does(train):
    in_memory = dataclasses.replace(train, inputs=train.inputs[:])
    for examples in (train.labels == 1, slice(5), np.array([2, 2, 0])):
        part = train.take(examples)
        assert part.content_hash == in_memory.take(examples).content_hash
        assert ((part.inputs > 0).sum(axis=1) == part.lengths).all()

    for on_disk_example, example in zip(train, in_memory, strict=True):
        np.testing.assert_array_equal(on_disk_example[0], example[0])
        assert on_disk_example[1] == example[1]
    assert train.example_hashes() == in_memory.example_hashes()


class RecordingSource:
    """A data source that notes which threads read it."""

    def __init__(self, source):
        self.source = source
        self.threads = []

    def __getitems__(self, numbers):
        self.threads.append(threading.current_thread())
        return self.source.__getitems__(numbers)


def test_rows_are_prefetched_by_a_thread(train):
    rows = train.inputs
    expected = rows[:]
    rows.source = RecordingSource(rows.source)

    rows.prefetch(np.array([5, 3, 8, 1]))

    np.testing.assert_array_equal(rows[[5, 3, 8]], expected[[5, 3, 8]])
    assert rows.source.threads
    assert threading.main_thread() not in rows.source.threads


def test_rows_that_were_not_prefetched_last_are_read_at_once(train):
    rows = train.inputs
    expected = rows[:]
    rows.source = RecordingSource(rows.source)

    rows.prefetch(np.array([5, 3, 8, 1]))
    np.testing.assert_array_equal(rows[[5, 4]], expected[[5, 4]])
    rows.prefetch(np.array([7, 7]))
    np.testing.assert_array_equal(rows[[8, 1]], expected[[8, 1]])

    assert rows.source.threads.count(threading.main_thread()) == 2
