"""Pathfinder: drawn in parts that survive a kill, or read from the released folders."""

import io
import os
import subprocess
import sys
import time
import zlib

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
    return {path: path.stat().st_mtime_ns for path in data_dir.rglob("parts-*/*.npz")}


def test_the_splits_are_all_pictures_once(tmp_path):
    splits = load_all(InParts(**QUICK, seed=3, num_workers=2), tmp_path)
    images, labels = generate(3, range(110), difficulty="easy")
    for column, whole in (("inputs", images.reshape(110, 1024)), ("labels", labels)):
        found = np.split(whole, [88, 99])
        for split, expected in zip(splits, found, strict=True):
            np.testing.assert_array_equal(getattr(split, column), expected)
    assert {n for split in splits for n in split.lengths} == {1024}
    alone = Pathfinder(**QUICK, seed=3)  # num_workers makes no other data
    assert alone.folder(tmp_path) == InParts(**QUICK, seed=3).folder(tmp_path)


# A process of its own, killed while it draws.
PROCESS = """
import sys
from lra_tasks.pathfinder import Pathfinder

class InParts(Pathfinder):
    part_pixels = 30 * 1024

InParts(difficulty="easy", num_examples=900).load("train", sys.argv[1])
"""


def test_a_killed_preparation_goes_on_where_it_was(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(tmp_path)])
    while len(parts_in(tmp_path)) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    drawn = parts_in(tmp_path)
    assert 4 <= len(drawn) < 30  # not all of them
    task = InParts(difficulty="easy", num_examples=900)
    again = task.make_splits(tmp_path)["train"]
    assert drawn.items() <= parts_in(tmp_path).items()
    images, _ = generate(0, range(720), difficulty="easy")
    np.testing.assert_array_equal(again.inputs, images.reshape(720, 1024))
    task.load("train", tmp_path)
    assert not parts_in(tmp_path)


def test_a_full_disk_is_one_line_and_no_dataset(tmp_path):
    with full_disk(1009), pytest.raises(OSError, match="File too large") as caught:
        InParts(**QUICK).load("train", tmp_path)
    assert str(tmp_path) in caught.value.filename
    assert not parts_in(tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_a_damaged_part_is_drawn_again(tmp_path, capsys):
    task = InParts(**QUICK)
    whole = task.make_splits(tmp_path)["train"]
    parts = task._parts(tmp_path)
    content = bytearray((parts / "0-29.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (parts / "0-29.npz").write_bytes(content)
    (parts / "30-59.npz").write_bytes(content[:1009])
    (parts / "60-89.npz").write_bytes(b"")
    (parts / "90-109.npz").unlink()
    os.mkfifo(parts / "90-109.npz")
    read = task.load("train", tmp_path)
    assert capsys.readouterr().err.count("is damaged: drawn again") == 3
    assert read.content_hash == whole.content_hash


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


@pytest.mark.parametrize("named", ["", "lra_release", f"lra_release/{FOLDER}"])
def test_the_released_folders_are_read(tmp_path, named, capsys):
    folder = tmp_path / "lra_release" / FOLDER
    images, labels = write_released(folder)
    empty = folder / "imgs/10/sample_2.png"  # the last one
    empty.write_bytes(b"")
    task = Pathfinder(source_dir=str(tmp_path / named))
    splits = load_all(task, tmp_path / "data")
    assert capsys.readouterr().err == f"{empty} is empty: left out\n"
    assert [split.num_examples for split in splits] == [31, 4, 4]
    order = np.random.default_rng(42).permutation(39)  # whatever `seed` is
    inputs = np.concatenate([split.inputs for split in splits])
    np.testing.assert_array_equal(inputs, images[order])
    found = np.concatenate([split.labels for split in splits])
    np.testing.assert_array_equal(found, labels[order])
    same = Pathfinder(source_dir=str(tmp_path / named), seed=1, num_examples=50)
    assert task.folder() == same.folder() != Pathfinder().folder()


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
        ("imgs/3/sample_1.png", png(32, 100_003), "not a whole PNG .*bomb"),
        ("imgs/3/sample_1.png", png(32)[:50], "sample_1.png is not a whole PNG"),
        ("imgs/3/sample_1.png", b"x" * 2**20 + b"x", "longer than 1,048,576 bytes"),
        ("imgs/3/sample_1.png", None, r"3.npy, line 2: there is no .*sample_1.png"),
        ("metadata/3.npy", b"imgs/3 sample_0.png 0 2 1.8\n", "line 1: .*label 0 or 1"),
        ("metadata/3.npy", b"imgs/3 sample_0.png 0\n", "line 1: .* not imgs/K"),
        ("metadata/3.npy", b"../.. x.png 0 1\n", "line 1: .* not imgs/K"),
        ("metadata/3.npy", b"/etc passwd 0 1\n", "line 1: there is no .* in there"),
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
    message = "no pathfinder64/curv_contour_length_14: it is"
    with pytest.raises(DataError, match=message):
        task.load("train", tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resolution": 48}, r"resolution must be one of \(32, 64, 128, 256\), not 48"),
        ({"resolution": 64}, "max_length must be 4,096, all pixels of resolution 64"),
        ({"difficulty": "harder"}, "difficulty must be one of easy, intermediate, h"),
        ({"num_workers": 0}, "num_workers must be at least 1"),
    ],
)
def test_options_that_are_turned_away(options, message):
    with pytest.raises(DataError, match=message):
        Pathfinder(**options)
