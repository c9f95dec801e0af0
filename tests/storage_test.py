"""Prepared data through what happens to disks and processes; no mocks."""

import functools
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

from lra_tasks import storage
from lra_tasks.split import DataError, Split
from tests.archive_server import full_disk


def make_paired(num_rows=1511, num_examples=4003, width=2003):
    """Rows empty and full; more examples than rows."""
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


def make_images(num_rows=5003):
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, (num_rows, 1024)).astype(np.uint8)
    return Split.of_pictures(pixels, rng.integers(0, 10, num_rows))


def folder_in(data_dir, name="toy"):
    return storage.get_folder(name, {"seed": 0}, "1.0.0", data_dir)


def load(folder, split):
    return storage.load(folder, "train", lambda _: {"train": split}, {"seed": 0})


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

def make(_):
    print("making", flush=True)
    rows = np.random.default_rng(0).integers(0, 256, (30_011, 1024)).astype(np.uint8)
    return {"train": Split.of_pictures(rows, np.arange(len(rows)))}

folder = storage.get_folder("toy", {"seed": 0}, "1.0.0", sys.argv[1])
print(storage.load(folder, "train", make, {}).content_hash)
"""


def start(data_dir):
    command = [sys.executable, "-W", "error", "-c", PROCESS, str(data_dir)]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, text=True, **pipes)


@pytest.mark.parametrize("make", [make_paired, make_images])
def test_what_is_read_is_what_was_made_once(tmp_path, make, capfd):
    made = make()
    for split in (made, None):
        read = load(folder_in(tmp_path), split)
        assert read.inputs.dtype == made.inputs.dtype
        for column in ("inputs", "lengths", "labels", "pairs"):
            np.testing.assert_array_equal(getattr(read, column), getattr(made, column))
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_folder_pins_name_options_and_version(tmp_path, monkeypatch):
    options = {"seed": 0, "size": 2}
    plain = storage.get_folder("toy", {"size": 2, "seed": 0}, "1.0.0", tmp_path)
    # Data prepared by later versions of the code are found where they are.
    assert plain == tmp_path / "toy" / "da90aed1dd0cad6a" / "1.0.0"
    changed = storage.get_folder("toy", {**options, "seed": 1}, "1.0.0", tmp_path)
    assert changed != plain
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path))
    assert storage.get_folder("toy", options, "1.0.0") == plain


def test_values_that_are_not_those_of_the_sha256_are_noticed(tmp_path):
    folder, made = folder_in(tmp_path), make_images(2003)
    load(folder, made)
    (path,) = folder.glob("*.safetensors")
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
    tensors = safetensors.numpy.load_file(path)
    for name in tensors:
        changed = {key: x + (key == name) for key, x in tensors.items()}
        safetensors.numpy.save_file(changed, path, metadata)
        damaged(folder, made, "sha256|broadcast|index")


def test_a_flipped_truncated_or_missing_file_is_noticed(tmp_path):
    folder, made = folder_in(tmp_path), make_images(307)
    load(folder, made)
    (data,) = folder.glob("*.safetensors")
    for file in list(folder.iterdir()):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        damaged(folder, made, "damaged")
        if file == data:
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 4])
            file.write_bytes(content[:middle] + flipped + content[middle + 1 :])
            damaged(folder, made, r"delete that folder and run again$")
        file.unlink()
        damaged(folder, made, "damaged")
        file.write_bytes(content)
    load(folder, made)


def test_only_regular_files_are_read(tmp_path):
    folder, made = folder_in(tmp_path), make_images(307)
    load(folder, made)
    (file,) = folder.glob("*.safetensors")
    for put in (os.mkfifo, functools.partial(os.symlink, "/dev/zero")):
        file.unlink()
        put(file)
        damaged(folder, made, rf"{file.name} is not a regular file")


def test_two_processes_prepare_once(tmp_path):
    processes = [start(tmp_path) for _ in range(2)]
    said = [each.communicate(timeout=60) for each in processes]
    outputs, errors = zip(*said, strict=True)
    assert [each.returncode for each in processes] == [0, 0], errors
    assert sorted(output.count("making") for output in outputs) == [0, 1]
    assert len({output.split()[-1] for output in outputs}) == 1
    waited = "".join(errors)
    assert waited.startswith("another process is preparing")
    assert waited.count("\n") == 1


def test_killed_amid_its_writing_then_run_again(tmp_path):
    folder = folder_in(tmp_path)
    process = start(tmp_path)
    while not any(folder.parent.glob("incomplete.*/*")):
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert any(folder.parent.glob("incomplete.*"))
    assert start(tmp_path).communicate(timeout=60)[0].startswith("making")
    assert sorted(path.name for path in folder.parent.iterdir()) == ["1.0.0", "lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    folder, made = folder_in(tmp_path), make_images()
    with full_disk(2**22), pytest.raises(OSError, match=str(tmp_path)) as caught:
        load(folder, made)
    assert "\n" not in str(caught.value)
    assert [path.name for path in folder.parent.iterdir()] == ["lock"]
    load(folder, made)  # with room again it goes on


def test_a_file_that_is_deleted_while_open_is_not_missed(tmp_path):
    """As on NFS, which keeps it under a name with a dot until it is closed."""

    def make(folder):
        (folder / ".nfs0001").write_bytes(b"rows")
        return {"train": make_images(5)}

    folder = tmp_path / "toy"
    storage.load(folder, "train", make, {})
    (folder / ".nfs0001").unlink()
    assert storage.load(folder, "train", make, {}).num_examples == 5


def test_a_pipe_beside_the_splits_is_not_waited_for(tmp_path):
    def make(folder):
        (folder / "words.json").write_text("{}")
        return {"train": make_images(5)}

    folder = tmp_path / "toy"
    storage.load(folder, "train", make, {})
    (folder / "words.json").unlink()
    os.mkfifo(folder / "words.json")
    with pytest.raises(DataError, match=r"words\.json is not a regular file"):
        storage.load(folder, "train", make, {})
