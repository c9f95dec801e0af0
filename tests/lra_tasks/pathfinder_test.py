"""Pathfinder: drawn, or read from the released folders."""

import numpy as np
import PIL.Image
import pytest

from lra_tasks import pathfinder
from lra_tasks.errors import DataError
from lra_tasks.pathfinder import Pathfinder
from lra_tasks.pathfinder_generator import generate
from tests.lra_tasks.archive_server import load_all

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


def write_released(folder, num_images=40, side=32, seed=0):
    """The released layout: imgs/K/sample_I.png, and metadata/K.npy, which is text."""
    rng = np.random.default_rng(seed)
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


def edit(path, change):
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    "change",
    [
        lambda lists: (lists / "._0.npy").write_bytes(b"\0\5\x16\7Mac OS X"),
        lambda lists: edit(lists / "0.npy", lambda text: f"\ufeff\n{text}\n \n"),
        lambda lists: edit(lists / "0.npy", lambda text: text.replace("\n", "\r\n")),
        lambda lists: edit(
            lists / "0.npy", lambda text: text.replace(" 1.8", ".0 1.8")
        ),
    ],
)
def test_lists_that_other_programs_have_touched_are_the_same(tmp_path, change):
    images, labels = write_released(tmp_path / FOLDER)
    change(tmp_path / FOLDER / "metadata")
    train = Pathfinder(source_dir=str(tmp_path)).load("train", tmp_path / "data")
    order = np.random.default_rng(42).permutation(40)[:32]
    np.testing.assert_array_equal(train.inputs, images[order])
    np.testing.assert_array_equal(train.labels, labels[order])


LINE = "imgs/0 sample_0.png 0 1 1.8 14 2.0 20 1.5"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "0 (1).npy",
            LINE,
            r"0 \(1\).npy is none of the release's 0.npy, .*: remove it",
        ),
        (
            "11.npy",
            "imgs/0 sample_0.png 0",
            "11.npy, line 1 is not imgs/K sample_I.png",
        ),
        ("11.npy", f"{LINE}\nimgs/0", "11.npy, line 2 is not imgs/K sample_I.png"),
        ("11.npy", LINE.replace("0 1 1", "0 2 1"), "LABEL is 0 or 1: imgs/0 sample"),
        ("11.npy", LINE.replace("0 1 1", "0 x 1"), "LABEL is 0 or 1: imgs/0 sample"),
        ("11.npy", LINE.replace("0.png", "9.png"), "sample_9.png is in metadata/ but"),
        (
            "11.npy",
            np.array([LINE.split()]),
            "11.npy is not text, as the release has it",
        ),
    ],
)
def test_wrong_lists_are_named(tmp_path, name, content, message):
    write_released(tmp_path / FOLDER)
    path = tmp_path / FOLDER / "metadata" / name
    if isinstance(content, str):
        path.write_text(content)
    else:
        np.save(path, content)
    with pytest.raises(DataError, match=message) as caught:
        Pathfinder(source_dir=str(tmp_path)).load("train", tmp_path / "data")
    assert "\n" not in str(caught.value)


def test_a_renamed_folder_is_read_and_one_of_another_difficulty_is_not(tmp_path):
    write_released(tmp_path / FOLDER)
    renamed = (tmp_path / FOLDER).rename(tmp_path / "contours")
    task = Pathfinder(source_dir=str(renamed))
    assert task.load("train", tmp_path / "data").num_examples == 32
    easy = renamed.rename(tmp_path / "curv_baseline")
    with pytest.raises(DataError, match="neither pathfinder32/curv_contour_length_14"):
        Pathfinder(source_dir=str(easy)).load("train", tmp_path / "data")


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


def test_an_int_is_a_share_too():
    assert Pathfinder(easier_share=0).easier_share == 0


def test_easier_pictures_are_added_to_train_alone(tmp_path):
    options = {"difficulty": "intermediate", "num_examples": 60, "seed": 3}
    plain = load_all(Pathfinder(**options), tmp_path)
    mixed = load_all(Pathfinder(**options, easier_share=0.25), tmp_path)
    for split, expected in zip(mixed[1:], plain[1:], strict=True):
        assert split.content_hash == expected.content_hash
    train, others = mixed[0], plain[0].num_examples
    assert train.num_examples == 48 + 16
    assert train.take(slice(others)).content_hash == plain[0].content_hash
    images, labels = generate(3, range(60, 76), difficulty="easy")
    np.testing.assert_array_equal(train.inputs[others:], images.reshape(16, 1024))
    np.testing.assert_array_equal(train.labels[others:], labels)


def test_easier_share_makes_other_data_only_where_it_is_set():
    """The name of the data without it is that of a task that does not know it."""
    plain = Pathfinder()
    assert "easier_share" not in plain.cache_key()
    assert plain.config_name == Pathfinder(easier_share=0.0).config_name
    names = {Pathfinder(easier_share=x).config_name for x in (0.0, 0.25, 0.5)}
    assert len(names) == 3


def test_easier_pictures_are_read_from_the_folder_beside(tmp_path):
    write_released(tmp_path / FOLDER)
    easier = tmp_path / "pathfinder32/curv_contour_length_9"
    images, _ = write_released(easier, seed=1)
    options = {"source_dir": str(tmp_path), "easier_share": 0.2}
    task = Pathfinder(**options)
    train, *_ = load_all(task, tmp_path / "data")
    assert train.num_examples == 32 + 8
    order = np.random.default_rng(42).permutation(40)
    np.testing.assert_array_equal(train.inputs[32:], images[order[:8]])
    (easier / "metadata/0.npy").write_text("")  # other data
    assert Pathfinder(**options).folder() != task.folder()
    with pytest.raises(
        DataError, match="36 pictures, fewer than 128: lower easier_sha"
    ):
        Pathfinder(**options | {"easier_share": 0.8}).load("train", tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"easier_share": 1.0}, r"easier_share must be in \[0, 1\), not 1.0"),
        (
            {"easier_share": 0.5, "difficulty": "easy"},
            "must be 0 with difficulty 'easy'",
        ),
    ],
)
def test_wrong_easier_shares_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        Pathfinder(**options)
