"""Pathfinder: drawn, or read from the released folders."""

import numpy as np
import PIL.Image
import pytest

from lra_tasks import pathfinder
from lra_tasks.pathfinder import Pathfinder
from lra_tasks.pathfinder_generator import generate
from lra_tasks.split import DataError
from tests.archive_server import load_all

FOLDER = "pathfinder32/curv_contour_length_14"


def test_make_splits_are_all_pictures_once(tmp_path, monkeypatch):
    options = {"difficulty": "easy", "num_examples": 110, "seed": 3}
    monkeypatch.setattr(pathfinder, "PART_SIZE", 30)
    splits = load_all(Pathfinder(**options, num_workers=2), tmp_path)
    images, labels = generate(3, range(110), difficulty="easy")
    for column, whole in (("inputs", images.reshape(110, 1024)), ("labels", labels)):
        found = np.split(whole, [88, 99])
        for split, expected in zip(splits, found, strict=True):
            np.testing.assert_array_equal(getattr(split, column), expected)
    assert {n for split in splits for n in split.lengths} == {1024}
    alone, two = Pathfinder(**options), Pathfinder(**options, num_workers=2)
    assert alone.folder(tmp_path) == two.folder(tmp_path)


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
            PIL.Image.fromarray(images[row]).save(folder / "imgs" / str(batch) / name)
            words = f"imgs/{batch} {name} {i} {labels[row]} 1.8 14 2.0 20 1.5"
            lines.append(f"{words}\n")
        (folder / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return images.reshape(num_images, -1), labels


@pytest.mark.parametrize("named", ["", "lra_release", f"lra_release/{FOLDER}"])
def test_released_folders_are_read(tmp_path, named, capsys):
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


def test_wrong_released_pictures_are_named(tmp_path):
    write_released(tmp_path / FOLDER)
    large = {"resolution": 64, "max_length": 4096}
    (tmp_path / "pathfinder64").symlink_to(tmp_path / "pathfinder32")
    picture = tmp_path / FOLDER / "imgs/0/sample_1.png"
    picture.write_bytes(picture.read_bytes()[:90])
    for options, message in (
        ({}, "sample_1.png is not a whole PNG picture of 32 x 32"),
        (large, "sample_0.png is not a whole PNG picture of 64 x 64"),
        ({"difficulty": "easy"}, "neither pathfinder32/curv_baseline nor lra"),
    ):
        with pytest.raises(DataError, match=message):
            Pathfinder(source_dir=str(tmp_path), **options).load("train", tmp_path)
