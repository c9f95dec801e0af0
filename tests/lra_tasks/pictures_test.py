"""A user's own pictures in folders: which are read, and as what."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.ExifTags
import PIL.Image
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.task import get_task
from tests.lra_tasks.splits import load_all


def pictures(folder, **options) -> Any:
    return get_task("pictures", source_dir=str(folder), **options)


def save(path, pixels, mode=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = PIL.Image.fromarray(np.asarray(pixels, np.uint8))
    (picture.convert(mode) if mode else picture).save(path)


@pytest.fixture
def folder(tmp_path):
    """Twenty grey pictures of each of two classes, of different sizes."""
    rng = np.random.default_rng(0)
    for label, base in (("dark", 0), ("light, bright", 200)):
        for number in range(20):
            pixels = base + rng.integers(0, 50, (8 + number, 8))
            save(tmp_path / "in" / label / f"{number}.png", pixels)
    return tmp_path / "in"


def test_pictures_are_resized_and_named_after_their_folders(folder):
    task = pictures(folder, size=4)
    assert (task.max_length, task.class_names) == (16, ["dark", "light, bright"])
    splits = load_all(task, folder.parent / "data")
    assert [split.num_examples for split in splits] == [32, 4, 4]
    for split in splits:
        assert split.inputs.shape[1] == 16
        np.testing.assert_array_equal(split.labels, split.inputs.mean(1) > 125)
    builder: Any = tfds.builder_from_directory(task.folder(folder.parent / "data"))
    assert builder.info.features["label"].names == task.class_names
    # A run is read where its pictures are not.
    elsewhere = get_task("pictures", size=4, labels=task.labels)
    assert elsewhere.class_names == task.class_names


def test_pictures_are_as_their_files_without_a_change_of_size(folder):
    pixels = np.random.default_rng(1).integers(0, 256, (4, 4, 3))
    save(folder / "dark/new.png", pixels)
    path = str(folder / "dark/new.png")
    rgb = pictures(folder, size=4, colour="rgb")
    inputs, lengths = rgb.encode([path])
    np.testing.assert_array_equal(rgb.decode(inputs[0]), pixels)
    assert lengths == 4 * 4 * 3 == rgb.max_length
    grey, _ = pictures(folder, size=4).encode([path])
    expected = np.rint(pixels @ [0.2989, 0.5870, 0.1140]).reshape(1, 16)
    np.testing.assert_array_equal(grey, expected)


@pytest.mark.parametrize(
    ("mode", "suffix"), [("L", ".png"), ("LA", ".png"), ("CMYK", ".tif")]
)
def test_pictures_of_any_mode_are_read(folder, mode, suffix):
    path = folder / f"dark/new{suffix}"
    save(path, np.full((4, 4, 3), 80), mode)
    inputs, _ = pictures(folder, size=4).encode([str(path)])
    np.testing.assert_allclose(inputs.astype(int), 80, atol=1)


def test_what_is_transparent_is_white(folder):
    path = folder / "dark/new.png"
    save(path, np.tile([9, 9, 9, 0], (4, 4, 1)))
    inputs, _ = pictures(folder, size=4).encode([str(path)])
    np.testing.assert_array_equal(inputs, 255)


def test_a_picture_stands_as_its_camera_was_held(folder):
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4)
    exif = PIL.Image.Exif()
    exif[PIL.ExifTags.Base.Orientation] = 3  # upside down
    path = folder / "dark/new.png"
    PIL.Image.fromarray(pixels).save(path, exif=exif)
    task = pictures(folder, size=4)
    inputs, _ = task.encode([str(path)])
    np.testing.assert_array_equal(task.decode(inputs[0]), pixels[::-1, ::-1])


def test_pictures_come_in_the_order_of_their_names(folder, monkeypatch):
    """A disk lists them in an order of its own."""
    files = sorted(folder.rglob("*"))
    monkeypatch.setattr(Path, "rglob", lambda *_: reversed(files))
    assert pictures(folder).source_files() == [x for x in files if x.suffix]


def test_pictures_may_have_folders_of_splits(folder, capsys):
    """Some cameras write .PNG; macOS adds notes in ._0.png."""
    for name in ("train", "test"):
        (folder.parent / "new" / name).mkdir(parents=True)
    (folder / "dark/._0.png").write_bytes(b"\0")
    folder.joinpath("dark").rename(folder.parent / "new/train/dark")
    folder.joinpath("light, bright").rename(folder.parent / "new/train/light")
    for label in ("dark", "light"):
        save(folder.parent / "new/test" / label / "a.PNG", np.full((4, 4), len(label)))
    save(folder.parent / "new/stray.png", np.zeros((4, 4)))
    splits = load_all(pictures(folder.parent / "new", size=4), folder.parent / "data")
    assert [split.num_examples for split in splits] == [36, 4, 2]
    assert "1 pictures lie in no folder of a class, such as" in capsys.readouterr().err


def test_hidden_folders_are_no_classes(folder):
    plain = pictures(folder)
    save(folder / ".ipynb_checkpoints/0.png", np.zeros((4, 4)))
    save(folder / "dark/.thumbnails/0.png", np.zeros((4, 4)))
    assert pictures(folder).class_names == ["dark", "light, bright"]
    assert pictures(folder).folder() == plain.folder()


@pytest.mark.parametrize(
    ("name", "split"), [("val", "validation"), ("Test", "test"), ("dev", "validation")]
)
def test_no_folder_of_a_split_is_ignored(tmp_path, name, split):
    for path in ("train/cat/1.png", "train/dog/1.png", f"{name}/cat/1.png"):
        save(tmp_path / path, np.zeros((4, 4)))
    message = f"{tmp_path}/{name} is not read: name it {split}, or remove it"
    with pytest.raises(DataError, match=message):
        pictures(tmp_path)


def break_off(folder):
    content = (folder / "dark/3.png").read_bytes()
    (folder / "dark/3.png").write_bytes(content[:60])


def damage_palette(folder):
    path = folder / "dark/3.bmp"
    save(path, np.zeros((4, 4)))
    content = bytearray(path.read_bytes())
    content[46] = 255  # the number of its colours
    path.write_bytes(content)


def write_16_bits(folder):
    wide = PIL.Image.fromarray(np.full((4, 4), 999, np.uint16))
    wide.save(folder / "dark/3.png")


def name_class_in_test_alone(folder):
    for label in ("dark", "light, bright"):
        (folder / "train").mkdir(exist_ok=True)
        folder.joinpath(label).rename(folder / "train" / label)
    save(folder / "test/odd/a.png", np.zeros((4, 4)))


def keep_one_class(folder):
    folder.joinpath("light, bright").rename(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (break_off, {}, r"dark/3\.png cannot be read as a picture: .*truncated"),
        (damage_palette, {}, r"dark/3\.bmp cannot be read as .*: invalid palette size"),
        (write_16_bits, {}, r"dark/3\.png has the mode I;16: save it with"),
        (keep_one_class, {}, "which has a folder of pictures .*; there is 'dark'"),
        (lambda folder: None, {"labels": "dark,light"}, "is in none of the classes"),
        (name_class_in_test_alone, {}, "test/odd/a.png is in none of the classes"),
        (lambda folder: None, {"max_length": 9}, "max_length must be 1,024, all inten"),
    ],
)
def test_pictures_that_cannot_be_read_are_one_line(folder, change, options, message):
    change(folder)
    with pytest.raises(DataError, match=message):
        pictures(folder, **options).load("train", folder.parent / "data")


def test_a_folder_without_pictures_is_named(tmp_path):
    with pytest.raises(DataError, match=rf"{tmp_path}\) must hold a folder of pict"):
        pictures(tmp_path)
    with pytest.raises(DataError, match="source_dir must name the folder"):
        get_task("pictures").load("train", tmp_path)


def test_only_grey_pictures_are_mirrored(folder):
    assert "flip_vertical" in pictures(folder).augmentations
    assert pictures(folder, colour="rgb").augmentations == ()
