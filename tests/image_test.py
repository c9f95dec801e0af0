"""Image: tiny batches in both official formats through the real reader."""

import numpy as np
import pytest

from lra_tasks.image import Image, to_grey
from lra_tasks.split import DataError
from tests.archive_server import archive_at, hashes, load_all, serve, tar_of, write
from tests.cifar_batches import (
    BATCH_SIZE,
    BATCHES,
    NAMES,
    as_binary,
    as_pickles,
    changed,
)


class TinyImage(Image):
    batch_size = BATCH_SIZE


def grey_by_hand(rgb):
    """[3072] -> [1024], one pixel after another, in exact fractions."""
    red, green, blue = rgb[:1024], rgb[1024:2048], rgb[2048:]
    return [
        (2989 * int(r) + 5870 * int(g) + 1140 * int(b) + 5000) // 10_000
        for r, g, b in zip(red, green, blue, strict=True)
    ]


def test_grey_is_the_weighted_sum():
    colours = np.array(
        [[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]
    )
    expected = colours @ [0.2989, 0.5870, 0.1140]
    np.testing.assert_array_equal(to_grey(colours.astype(np.uint8)), expected.round())


def test_the_splits_and_what_is_in_them(tmp_path):
    rgb, labels = BATCHES["test_batch"]
    rgb = rgb * np.array([[1]] * 19 + [[0]], np.uint8)  # black is a value, no padding
    write(tmp_path, as_binary(BATCHES | {"test_batch": (rgb, labels)}))
    train, validation, test = load_all(TinyImage(), tmp_path)
    assert np.bincount(train.labels).tolist() == [9] * 10
    assert np.bincount(validation.labels).tolist() == [1] * 10
    assert test.labels.tolist() == labels.tolist()
    assert test.lengths.tolist() == [1024] * BATCH_SIZE
    assert test.inputs.tolist() == [grey_by_hand(row) for row in rgb]
    label_of = {
        bytes(grey_by_hand(row)): label
        for name in NAMES[:5]
        for row, label in zip(*BATCHES[name], strict=True)
    }
    for split in (train, validation):
        for row, label in zip(split.inputs, split.labels, strict=True):
            assert label_of.pop(bytes(row)) == label
    assert not label_of


def test_both_formats_archives_and_downloads_are_the_same_data(tmp_path):
    packed = {
        "cifar-10-binary.tar.gz": tar_of(as_binary()),
        "cifar-10-python.tar.gz": tar_of(as_pickles()),
    }
    write(tmp_path / "a", as_binary())
    write(tmp_path / "b", as_pickles())
    for place, (name, content) in zip("cd", packed.items(), strict=True):
        write(tmp_path / place, {name: content})
    with serve(packed["cifar-10-binary.tar.gz"]) as (url, seen):
        archives = [archive_at(url, content, name) for name, content in packed.items()]
        task = type("T", (TinyImage,), {"archives": archives})()
        found = [hashes(task, tmp_path / place) for place in "abcde"]
    assert len(seen) == 1
    assert all(each == found[0] for each in found)


def test_a_picture_in_train_and_test_counts_in_test_only(tmp_path):
    rgb, labels = BATCHES["data_batch_2"]
    rgb = np.concatenate([BATCHES["test_batch"][0][:1], rgb[1:]])
    write(tmp_path, as_binary(BATCHES | {"data_batch_2": (rgb, labels)}))
    splits = load_all(TinyImage(), tmp_path)
    assert splits[0].num_examples + splits[1].num_examples == 99
    assert splits[2].num_examples == 20


BINARY = as_binary()["cifar-10-batches-bin/data_batch_3.bin"]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("bin", BINARY[:-1], "61,459 bytes are no whole records of 3,073"),
        ("bin", BINARY[:-3073], "19 pictures and 19 labels, not 20 of each"),
        ("bin", b"\x0a" + BINARY[1:], "the label 10 is not 0 to 9"),
        ("bin", None, "has no data_batch_3"),
        ("py", b"", "not a batch in pickle format"),
        ("py", changed(labels=[1] * 19), "20 pictures and 19 labels, not 20 of each"),
        ("py", changed(labels=[1] * 19 + [-1]), "the label -1 is not 0 to 9"),
    ],
)
def test_what_is_wrong_in_a_batch(tmp_path, form, content, message):
    files, suffix = (as_binary(), ".bin") if form == "bin" else (as_pickles(), "")
    write(tmp_path, files | {f"cifar-10-batches-{form}/data_batch_3{suffix}": content})
    with pytest.raises(DataError, match=message) as caught:
        TinyImage().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "image").rglob("*.json"))


def test_pictures_are_whole():
    with pytest.raises(DataError, match="max_length must be 1024, all pixels"):
        Image(max_length=512)
