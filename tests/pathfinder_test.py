"""Pathfinder: drawn in parts that survive a kill, or read from the released folders."""

import concurrent.futures
import io
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from lra_tasks.pathfinder import Pathfinder
from lra_tasks.pathfinder_generator import generate
from lra_tasks.split import DataError
from tests.archive_server import full_disk, load_all

QUICK = {"difficulty": "easy", "num_examples": 110}
FOLDER = "pathfinder32/curv_contour_length_14"


class InParts(Pathfinder):
    part_pixels = 30 * 1024


def parts_in(data_dir):
    return {path.name: path for path in Path(data_dir).rglob("parts-*/*.npz")}


def test_the_splits_are_all_pictures_once(tmp_path):
    splits = load_all(InParts(**QUICK, seed=3), tmp_path)
    assert [split.num_examples for split in splits] == [88, 11, 11]
    images, labels = generate(3, range(110), difficulty="easy")
    label_of = dict(zip(map(bytes, images.reshape(110, 1024)), labels, strict=True))
    assert len(label_of) == 110
    for split in splits:
        assert split.lengths.tolist() == [1024] * split.num_examples
        for row, label in zip(split.inputs, split.labels, strict=True):
            assert label_of.pop(bytes(row)) == label
    assert not label_of


def test_parts_and_workers_do_not_show(tmp_path, monkeypatch):
    pools = []

    class Counted(concurrent.futures.ProcessPoolExecutor):
        def __init__(self, *arguments, **options):
            pools.append(arguments)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Counted)
    one = Pathfinder(**QUICK).load("train", tmp_path / "a")
    for number, task in enumerate((InParts(**QUICK), InParts(**QUICK, num_workers=2))):
        other = task.load("train", tmp_path / str(number))
        assert other.content_hash() == one.content_hash()
    assert pools == [(2,)]  # all parts are drawn by the same processes
    one, other = (Pathfinder(**QUICK, num_workers=n).folder(tmp_path) for n in (1, 2))
    assert one == other


def test_options_reach_the_pictures(tmp_path):
    for options in (
        {"seed": 1},
        {"difficulty": "hard"},
        {"resolution": 64, "max_length": 4096},
    ):
        task = Pathfinder(**{**QUICK, "num_examples": 10, **options})
        picture = task.decode(task.load("train", tmp_path).inputs[0])
        (image,), _ = generate(
            task.seed, [0], resolution=task.resolution, difficulty=task.difficulty
        )
        np.testing.assert_array_equal(picture, image)


# A process of its own, killed while it draws.
PROCESS = """
import sys
from lra_tasks.pathfinder import Pathfinder

class InParts(Pathfinder):
    part_pixels = 30 * 1024

InParts(difficulty="easy", num_examples=1500).load("train", sys.argv[1])
"""


def test_a_killed_preparation_goes_on_where_it_was(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path)])
    while len(parts_in(tmp_path)) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    drawn = {path: path.stat().st_mtime_ns for path in parts_in(tmp_path).values()}
    assert 4 <= len(drawn) < 50  # not all of them
    task = InParts(difficulty="easy", num_examples=1500)
    again = task.make_splits(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in drawn} == drawn
    expected = Pathfinder(difficulty="easy", num_examples=1500).make_splits(tmp_path)
    for name, split in again.items():
        assert split.content_hash() == expected[name].content_hash()
    task.load("train", tmp_path)
    assert not parts_in(tmp_path)


def test_a_full_disk_is_one_line_and_no_dataset(tmp_path):
    with full_disk(1009), pytest.raises(OSError, match="File too large") as caught:
        InParts(**QUICK).load("train", tmp_path)
    assert caught.value.filename.endswith("0-29.unfinished")
    assert not parts_in(tmp_path)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("damage", ["truncated", "emptied", "flipped", "a pipe"])
def test_a_damaged_part_is_drawn_again(tmp_path, capsys, damage):
    task = InParts(**QUICK)
    whole = task.make_splits(tmp_path)["train"]
    path = task._parts(tmp_path) / "30-59.npz"
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[: {"truncated": 1009, "emptied": 0}.get(damage)])
    if damage == "a pipe":
        path.unlink()
        os.mkfifo(path)
    read = task.load("train", tmp_path)
    said = "30-59.npz is damaged: drawn again" in capsys.readouterr().err
    assert said == (damage != "a pipe")
    assert read.content_hash() == whole.content_hash()


def write_released(folder, num_images=40, side=32):
    """The released layout: imgs/K/sample_I.png, and metadata/K.npy, which is text."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_images, side, side)).astype(np.uint8)
    labels = rng.integers(0, 2, num_images)
    (folder / "metadata").mkdir(parents=True)
    for batch, chosen in enumerate(np.array_split(np.arange(num_images), 11)):
        (folder / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for i, row in enumerate(chosen):
            name = f"sample_{i}.png"
            picture = PIL.Image.fromarray(images[row])
            picture.save(folder / "imgs" / str(batch) / name)
            words = f"imgs/{batch} {name} {i} {labels[row]} 1.8 14 2.0 20 1.5"
            lines.append(f"{words}\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return images.reshape(num_images, -1), labels


def test_the_released_folders_are_read(tmp_path):
    images, labels = write_released(tmp_path / FOLDER)
    task = Pathfinder(source_dir=str(tmp_path))
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [32, 4, 4]
    order = np.random.default_rng(42).permutation(40)  # whatever `seed` is
    inputs = np.concatenate([split.inputs for split in splits])
    np.testing.assert_array_equal(inputs, images[order])
    found = np.concatenate([split.labels for split in splits])
    np.testing.assert_array_equal(found, labels[order])


def test_what_does_not_count_for_released_pictures_makes_no_other_dataset(tmp_path):
    released = {"source_dir": str(tmp_path)}
    plain, same = (
        Pathfinder(**released),
        Pathfinder(**released, seed=1, num_examples=50),
    )
    assert plain.folder(tmp_path) == same.folder(tmp_path)
    drawn = (Pathfinder(), Pathfinder(seed=1), Pathfinder(num_examples=50))
    assert len({task.folder(tmp_path) for task in (plain, *drawn)}) == 4


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("lra_release/lra_release", ""),
        ("lra_release", "lra_release"),
        ("", "pathfinder32"),
        ("", FOLDER),
    ],
)
def test_source_dir_may_be_any_folder_above(tmp_path, place, named):
    write_released(tmp_path / place / FOLDER)
    task = Pathfinder(source_dir=str(tmp_path / named))
    assert task.load("test", tmp_path / "data").num_examples == 4


def test_empty_files_are_left_out_with_a_warning(tmp_path, capsys):
    write_released(tmp_path / FOLDER)
    empty = tmp_path / FOLDER / "imgs/0/sample_2.png"
    empty.write_bytes(b"")
    splits = load_all(Pathfinder(source_dir=str(tmp_path)), tmp_path / "data")
    assert sum(split.num_examples for split in splits) == 39
    assert capsys.readouterr().err == f"{empty} is empty: left out\n"


def png(side, declared=None):
    """A picture, whose header may say that it is larger."""
    buffer = io.BytesIO()
    PIL.Image.new("L", (side, side)).save(buffer, "PNG")
    content = buffer.getvalue()
    if declared is None:
        return content
    header = b"IHDR" + 2 * declared.to_bytes(4, "big") + b"\x08\0\0\0\0"
    return content[:12] + header + zlib.crc32(header).to_bytes(4, "big") + content[33:]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("imgs/3/sample_1.png", png(32, 33), "sample_1.png is 33x33, not 32x32"),
        ("imgs/3/sample_1.png", png(32, 100_003), "no whole PNG .*bomb"),
        ("imgs/3/sample_1.png", png(32)[:50], "sample_1.png is no whole PNG"),
        ("imgs/3/sample_1.png", b"GIF89a", "sample_1.png is no whole PNG"),
        ("imgs/3/sample_1.png", b"x" * 2**20 + b"x", "longer than 1,048,576 bytes"),
        ("imgs/3/sample_1.png", None, r"3.npy, line 2: there is no .*sample_1.png"),
        (
            "metadata/3.npy",
            b"imgs/3 sample_0.png 0 2 1.8\n",
            "line 1: the label '2' is",
        ),
        ("metadata/3.npy", b"imgs/3 sample_0.png 0\n", "line 1: 3 columns, not 4"),
        ("metadata/3.npy", b"../.. x.png 0 1\n", "line 1: .* leads out of the folder"),
        ("metadata/3.npy", b"/etc x.png 0 1\n", "line 1: .* leads out of the folder"),
    ],
)
def test_what_is_wrong_in_a_released_folder(tmp_path, file, content, message):
    write_released(tmp_path / FOLDER)
    path = tmp_path / FOLDER / file
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    task = Pathfinder(source_dir=str(tmp_path))
    with pytest.raises(DataError, match=message) as caught:
        task.load("train", tmp_path / "data")
    assert str(tmp_path / FOLDER) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "data").rglob("*.json"))


def test_no_released_folder_at_all(tmp_path):
    task = Pathfinder(source_dir=str(tmp_path), resolution=64, max_length=4096)
    with pytest.raises(
        DataError, match="no pathfinder64/curv_contour_length_14: it is"
    ):
        task.load("train", tmp_path / "data")
    (tmp_path / "pathfinder64/curv_contour_length_14/metadata").mkdir(parents=True)
    with pytest.raises(DataError, match=r"has no metadata/K\.npy with pictures"):
        task.load("train", tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": 48}, r"resolution must be one of \(32, 64, 128, 256\), not 48"),
        ({"resolution": 64}, "max_length must be 4,096, all pixels of resolution 64"),
        ({"difficulty": "harder"}, "difficulty must be one of easy, intermediate, h"),
        ({"num_examples": 9}, "num_examples must be at least 10"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
    ],
)
def test_options_that_are_turned_away(options, message):
    with pytest.raises(DataError, match=message):
        Pathfinder(**options)
