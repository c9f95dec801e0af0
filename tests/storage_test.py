"""Prepared data through what happens to disks and processes; no mocks."""

import functools
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from lra_tasks import storage
from lra_tasks.split import DataError, Split
from tests.archive_server import full_disk


def make_paired(num_rows=1511, num_examples=4003, width=2003):
    """Several blocks; rows empty and full; more examples than rows."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, width, num_rows, np.int32, endpoint=True)
    lengths[:2] = 0, width
    inputs = rng.integers(1, 257, (num_rows, width)) * (
        np.arange(width) < lengths[:, None]
    )
    return Split(
        inputs.astype(np.uint16),
        lengths,
        rng.integers(0, 2, num_examples).astype(np.int32),
        rng.integers(0, num_rows, (num_examples, 2)).astype(np.int32),
    )


def make_images(num_rows=5003, width=1024):
    """Pixels: 0 is a value here, and every row is full."""
    rng = np.random.default_rng(1)
    return Split(
        rng.integers(0, 256, (num_rows, width)).astype(np.uint8),
        np.full(num_rows, width, np.int32),
        rng.integers(0, 10, num_rows).astype(np.int32),
    )


def folder_in(data_dir, name="toy"):
    return storage.get_folder(name, {"seed": 0}, "1.0.0", data_dir)


def load(folder, split):
    return storage.load(folder, "train", lambda: {"train": split}, {"seed": 0})


def damaged(folder, split, message):
    with pytest.raises(DataError, match=message) as caught:
        load(folder, split)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


# A process of its own: says when it starts to prepare, and the hash of what it read.
PROCESS = """
import sys
import numpy as np
from lra_tasks import storage
from lra_tasks.split import Split

def make():
    print("making", flush=True)
    rows = np.random.default_rng(0).integers(0, 256, (30_011, 1024)).astype(np.uint8)
    lengths = np.full(len(rows), 1024, np.int32)
    return {"train": Split(rows, lengths, np.arange(len(rows), dtype=np.int32))}

folder = storage.get_folder("toy", {"seed": 0}, "1.0.0", sys.argv[1])
print(storage.load(folder, "train", make, {}).content_hash())
"""


def start(data_dir):
    command = [sys.executable, "-W", "error", "-c", PROCESS, str(data_dir)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes)


@pytest.mark.parametrize("make", [make_paired, make_images])
def test_what_is_read_is_what_was_made(tmp_path, make):
    made = make()
    read = load(folder_in(tmp_path), made)
    assert read.inputs.dtype == made.inputs.dtype
    for column in ("inputs", "lengths", "labels"):
        np.testing.assert_array_equal(getattr(read, column), getattr(made, column))
    if made.pairs is None:
        assert read.pairs is None
    else:
        np.testing.assert_array_equal(read.pairs, made.pairs)


def test_made_once_and_without_a_word(tmp_path, capfd):
    calls = []

    def make():
        calls.append(1)
        return {"train": make_images(307)}

    for _ in range(3):
        storage.load(folder_in(tmp_path), "train", make, {})
    assert len(calls) == 1
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_folder_pins_name_options_and_version(tmp_path, monkeypatch):
    options = {"seed": 0, "size": 2}
    plain = storage.get_folder("toy", options, "1.0.0", tmp_path)
    same = {"size": 2, "seed": 0}
    others = [
        storage.get_folder("toys", options, "1.0.0", tmp_path),
        storage.get_folder("toy", options, "1.0.1", tmp_path),
        storage.get_folder("toy", {**options, "seed": 1}, "1.0.0", tmp_path),
    ]
    assert storage.get_folder("toy", same, "1.0.0", tmp_path) == plain
    assert len({plain, *others}) == 4
    # Data prepared by earlier versions of the code are found where they were.
    assert plain == tmp_path / "toy" / "4d89456e67ff35ef" / "1.0.0"
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path))
    assert storage.get_folder("toy", options, "1.0.0") == plain


def test_a_flipped_bit_is_noticed(tmp_path):
    folder, made = folder_in(tmp_path), make_images(2003)
    load(folder, made)
    (file,) = folder.glob("*array_record*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
    damaged(folder, made, r"delete that folder and run again$")


def test_values_swapped_behind_every_checksum_of_the_file_are_noticed(tmp_path):
    made, other = make_images(2003), make_images(2003)
    other.labels[0] += 1
    folder, foreign = folder_in(tmp_path), folder_in(tmp_path, "other")
    load(folder, made)
    load(foreign, other)
    (file,) = folder.glob("*array_record*")
    next(foreign.glob("*array_record*")).replace(file)
    damaged(folder, made, "sha256")


def test_a_truncated_or_missing_file_is_noticed(tmp_path):
    folder, made = folder_in(tmp_path), make_images(307)
    load(folder, made)
    for file in list(folder.iterdir()):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        damaged(folder, made, "damaged")
        file.unlink()
        damaged(folder, made, "damaged")
        file.write_bytes(content)
    load(folder, made)


@pytest.mark.parametrize("key", ["pythonClassName", "type"])
def test_no_module_is_imported_that_a_dataset_names(tmp_path, monkeypatch, key):
    folder, made = folder_in(tmp_path), make_images(307)
    load(folder, made)
    (tmp_path / "foreign.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    (path,) = folder.glob("features.json")
    features = json.loads(path.read_text())
    path.write_text(json.dumps({**features, key: "foreign.X"}))
    damaged(folder, made, r"foreign\.X is no class of tensorflow_data")


@pytest.mark.parametrize("pattern", ["*array_record*", "features.json"])
def test_only_regular_files_are_read(tmp_path, pattern):
    folder, made = folder_in(tmp_path), make_images(307)
    load(folder, made)
    (file,) = folder.glob(pattern)
    for put in (os.mkfifo, functools.partial(os.symlink, "/dev/zero")):
        file.unlink()
        put(file)
        damaged(folder, made, rf"{file.name} is no regular file")


def test_two_processes_prepare_once(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    said = [each.communicate(timeout=60) for each in processes]
    outputs, errors = zip(*said, strict=True)
    assert [each.returncode for each in processes] == [0, 0], errors
    assert sorted(output.count("making") for output in outputs) == [0, 1]
    assert len({output.split()[-1] for output in outputs}) == 1
    waited = [error for error in errors if error]
    assert len(waited) == 1
    assert waited[0].count("\n") == 1
    assert "another process is preparing" in waited[0]


def test_killed_amid_its_writing_then_run_again(tmp_path):
    folder = folder_in(tmp_path / "killed")
    process = start(tmp_path / "killed")
    while not any(folder.parent.glob("incomplete.*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert any(folder.parent.glob("incomplete.*"))
    whole, again = (
        start(tmp_path / name).communicate(timeout=60)[0].split()
        for name in ("whole", "killed")
    )
    assert whole == again
    assert whole[0] == "making"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["1.0.0", "lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    folder, made = folder_in(tmp_path), make_images()
    with full_disk(2**22), pytest.raises(OSError, match=str(tmp_path)) as caught:
        load(folder, made)
    assert "\n" not in str(caught.value)
    assert [path.name for path in folder.parent.iterdir()] == ["lock"]
    load(folder, made)  # with room again it goes on
