"""Prepared data through what happens to disks and processes; no mocks."""

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lra_tasks import storage
from lra_tasks.split import DataError, Split


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


def recipe(split, name="toy"):
    return storage.Recipe(name, "1.0.0", {"seed": 0}, lambda: {"train": split})


# A process of its own: says when it starts to prepare, and the hash of what it read.
PROCESS = """
import os
import sys
import numpy as np
from lra_tasks import storage
from lra_tasks.split import Split

def make():
    print("making", flush=True)
    rows = np.random.default_rng(0).integers(0, 256, (30_011, 1024)).astype(np.uint8)
    lengths = np.full(len(rows), 1024, np.int32)
    return {"train": Split(rows, lengths, np.arange(len(rows), dtype=np.int32))}

recipe = storage.Recipe("toy", "1.0.0", {}, make)
if "--as-nobody" in sys.argv:
    os.setuid(65534)
try:
    print(storage.load(recipe, "train", sys.argv[1]).content_hash())
except (ValueError, OSError) as error:
    sys.exit(f"error: {error}")
"""
TOY = storage.Recipe("toy", "1.0.0", {}, dict)


def start(data_dir, *arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROCESS, str(data_dir), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        **options,
    )


def wait_for_making(process):
    assert process.stdout.readline() == "making\n"


def files_left(data_dir):
    """Whatever lies in data_dir, the lock aside."""
    files = (path for path in Path(data_dir).rglob("*") if path.is_file())
    return [path for path in files if path.name != "lock"]


@pytest.mark.parametrize("make", [make_paired, make_images])
def test_what_is_read_is_what_was_made(tmp_path, make):
    made = make()
    read = storage.load(recipe(made), "train", tmp_path)
    assert read.inputs.dtype == made.inputs.dtype
    for column in ("inputs", "lengths", "labels"):
        np.testing.assert_array_equal(getattr(read, column), getattr(made, column))
    if made.pairs is None:
        assert read.pairs is None
    else:
        np.testing.assert_array_equal(read.pairs, made.pairs)


def test_made_once_and_without_a_word(tmp_path, capfd):
    calls = []
    counted = storage.Recipe(
        "toy", "1.0.0", {}, lambda: calls.append(1) or {"train": make_images(307)}
    )
    for _ in range(3):
        storage.load(counted, "train", tmp_path)
    assert len(calls) == 1
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_folder_pins_name_options_and_version(tmp_path, monkeypatch):
    plain = storage.Recipe("toy", "1.0.0", {"seed": 0, "size": 2}, dict)
    same = storage.Recipe("toy", "1.0.0", {"size": 2, "seed": 0}, dict)
    others = [
        storage.Recipe("toys", "1.0.0", plain.options, dict),
        storage.Recipe("toy", "1.0.1", plain.options, dict),
        storage.Recipe("toy", "1.0.0", {"seed": 1, "size": 2}, dict),
    ]
    assert plain.folder(tmp_path) == same.folder(tmp_path)
    assert len({each.folder(tmp_path) for each in (plain, *others)}) == 4
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path / "elsewhere"))
    assert plain.folder() == plain.folder(tmp_path / "elsewhere")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_flipped_bit_is_noticed(tmp_path, share):
    made = recipe(make_images())
    storage.load(made, "train", tmp_path)
    (file,) = made.folder(tmp_path).glob("*array_record*")
    content = bytearray(file.read_bytes())
    content[int(share * len(content))] ^= 4
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"delete that folder and run again$") as caught:
        storage.load(made, "train", tmp_path)
    assert str(made.folder(tmp_path)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_swapped_behind_every_checksum_of_the_file_are_noticed(tmp_path):
    made, other = make_images(), make_images()
    other.labels[0] += 1
    storage.load(recipe(made), "train", tmp_path)
    storage.load(recipe(other, "other"), "train", tmp_path)
    (file,) = recipe(made).folder(tmp_path).glob("*array_record*")
    (foreign,) = recipe(other, "other").folder(tmp_path).glob("*array_record*")
    foreign.replace(file)
    with pytest.raises(DataError, match="sha256"):
        storage.load(recipe(made), "train", tmp_path)


@pytest.mark.parametrize(
    "pattern",
    ["*array_record*", "metadata.json", "features.json", "dataset_info.json"],
)
@pytest.mark.parametrize("keep", [0.0, 0.5, None])
def test_a_truncated_or_missing_file_is_noticed(tmp_path, pattern, keep):
    made = recipe(make_images(2003))
    storage.load(made, "train", tmp_path)
    (file,) = made.folder(tmp_path).glob(pattern)
    if keep is None:
        file.unlink()
    else:
        os.truncate(file, int(keep * file.stat().st_size))
    with pytest.raises(DataError, match="damaged"):
        storage.load(made, "train", tmp_path)


@pytest.mark.parametrize("key", ["pythonClassName", "type"])
def test_no_module_is_imported_that_a_dataset_names(tmp_path, monkeypatch, key):
    made = recipe(make_images(307))
    storage.load(made, "train", tmp_path)
    (tmp_path / "foreign.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    (path,) = made.folder(tmp_path).glob("features.json")
    features = json.loads(path.read_text())
    path.write_text(json.dumps({**features, key: "foreign.X"}))
    with pytest.raises(DataError, match=r"foreign\.X is no class of tensorflow_data"):
        storage.load(made, "train", tmp_path)


@pytest.mark.parametrize("pattern", ["*array_record*", "metadata.json"])
def test_what_cannot_be_read_is_not_called_damaged(tmp_path, pattern):
    made = recipe(make_images(307))
    storage.load(made, "train", tmp_path)
    (file,) = made.folder(tmp_path).glob(pattern)
    file.unlink()
    file.mkdir()  # root may read any file, but no folder as if it were one
    with pytest.raises(IsADirectoryError) as caught:
        storage.load(made, "train", tmp_path)
    assert caught.value.filename == str(file)


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


# A process of its own, whose peak of memory is that of one load.
MEMORY = """
import resource
import sys
import numpy as np
from lra_tasks import storage
from lra_tasks.split import Split

def make():
    rows = np.full((100_003, 1024), 7, np.uint8)
    lengths = np.full(len(rows), 1024, np.int32)
    return {"train": Split(rows, lengths, lengths)}

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak()
storage.load(storage.Recipe("toy", "1.0.0", {}, make), "train", sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
def test_loading_takes_the_memory_of_the_arrays_and_preparing_that_twice(tmp_path):
    arrays = 100_003 * (1024 + 8)  # bytes
    for copies in (2, 1):  # prepared and read; read
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=Path(__file__).parents[1],
        )
        assert int(done.stdout) < copies * arrays + 75_000_000, done.stderr


def test_killed_at_any_moment_then_run_again(tmp_path):
    whole = start(tmp_path / "whole")
    wait_for_making(whole)
    started = time.monotonic()
    expected = whole.communicate(timeout=60)[0].split()[-1]
    seconds = time.monotonic() - started
    folder, draw, unfinished = TOY.folder(tmp_path / "killed"), random.Random(0), 0
    for attempt in range(7):
        process = start(tmp_path / "killed")
        wait_for_making(process)
        if attempt:
            time.sleep(seconds * (attempt + draw.random()) / 7)
        while not attempt and not any(folder.parent.glob("incomplete.*")):
            assert process.poll() is None  # the first is killed amid its writing
        process.kill()
        process.communicate()
        unfinished += any(folder.parent.glob("incomplete.*"))
        if folder.exists():
            break
    assert unfinished
    last = start(tmp_path / "killed").communicate(timeout=60)
    assert last[0].split()[-1] == expected
    assert sorted(path.name for path in folder.parent.iterdir()) == ["1.0.0", "lock"]


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    limit = (2**22, 2**22)  # bytes in a file; the split needs thirty million
    process = start(
        tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert str(tmp_path) in error
    assert not files_left(tmp_path)
    assert start(tmp_path).communicate(timeout=60)[0]  # with room again it goes on


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    tmp_path.chmod(0o555)
    nobody = ["--as-nobody"] if os.getuid() == 0 else []  # root may write anywhere
    process = start(tmp_path, *nobody)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert str(tmp_path) in error
