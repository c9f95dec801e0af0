"""Prepared data through what happens to disks and processes; no mocks."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time

import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.task import get_task
from tests.lra_tasks.archive_server import full_disk, write

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
said = [info.description, info.homepage, info.citation, info.metadata["options"]]
said += [str(features["tokens"].np_dtype), features["label"].names]
assert not {"lra_tasks", "tensorflow"} & {*sys.modules}
print(json.dumps([rows, *said]))
"""


def test_a_prepared_folder_is_read_by_plain_tfds(tmp_path, capfd):
    task = toy(seed=3)
    test = task.load("test", tmp_path)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["lra_listops"]
    command = [sys.executable, "-c", PLAIN, str(task.folder(tmp_path))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows, *said = json.loads(done.stdout)
    assert rows == [[tokens.tolist(), label] for tokens, label in test]
    told = [task.description, task.homepage, task.citation, dataclasses.asdict(task)]
    assert said == [*told, "uint8", list("0123456789")]


# A process of its own: says when it starts to prepare, and the hash of what it read.
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
    command = [sys.executable, "-W", "error", "-c", PROCESS, str(data_dir)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes)


def test_two_processes_prepare_once(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    said = [each.communicate(timeout=60) for each in processes]
    outputs, errors = zip(*said, strict=True)
    assert [each.returncode for each in processes] == [0, 0], errors
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
    assert start(tmp_path).communicate(timeout=60)[0].startswith("making")
    (config,) = tmp_path.glob("lra_listops/*")
    assert sorted(path.name for path in config.iterdir()) == ["1.0.0", "lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    task = toy(5003)
    with full_disk(2**16), pytest.raises(OSError, match="File too large") as caught:
        task.load("train", tmp_path)
    assert str(task.folder(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [x.name for x in task.folder(tmp_path).parent.iterdir()] == ["lock"]
    assert task.load("train", tmp_path).num_examples == 5003


@pytest.mark.parametrize(
    "damage", ["flip", "cut", "remove", "foreign", "no info", "cut info", "others"]
)
def test_load_reads_nothing_that_is_damaged_or_foreign(tmp_path, damage):
    task = toy()
    folder = task.folder(tmp_path)
    if damage == "foreign":
        folder.mkdir(parents=True)
        (folder / "dataset_info.json").write_text("{}")
    elif damage == "others":  # another task's in that place
        other = get_task("retrieval")
        write(tmp_path / "a/tsv_data", RETRIEVAL)
        other.load("train", tmp_path / "a")
        shutil.copytree(other.folder(tmp_path / "a"), folder)
    elif "info" in damage:
        task.load("train", tmp_path)
        info = folder / "dataset_info.json"
        content = info.read_bytes()
        info.unlink()
        if damage == "cut info":
            info.write_bytes(content[: len(content) // 2])
    else:
        task.load("train", tmp_path)
        (file,) = folder.glob("*-train.*")
        content = bytearray(file.read_bytes())
        middle = len(content) // 2
        content[middle] ^= 4
        file.unlink()
        if damage != "remove":
            file.write_bytes(content if damage == "flip" else content[:middle])
    with pytest.raises(DataError, match="delete that folder and run again") as caught:
        task.load("train", tmp_path)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [ImportError, PermissionError, AttributeError])
def test_load_blames_the_data_for_nothing_else(tmp_path, monkeypatch, error):
    toy().load("train", tmp_path)

    def fail(_):
        raise error("array_record is not installed")

    monkeypatch.setattr(tfds, "builder_from_directory", fail)
    with pytest.raises(error, match=r"^array_record is not installed$"):
        toy().load("train", tmp_path)
