"""Image: tiny batches in both official formats through the real reader."""

import os

import numpy as np
import pytest

from lra_tasks.image import Image, parse_pickle, to_grey
from lra_tasks.split import DataError
from tests.archive_server import hashes, load_all, tar_of, write
from tests.cifar_batches import BATCH_SIZE, BATCHES, as_binary, as_pickles, changed


class TinyImage(Image):
    batch_size = BATCH_SIZE


def test_grey_is_the_weighted_sum():
    colours = np.array(
        [[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]
    )
    expected = colours @ [0.2989, 0.5870, 0.1140]
    np.testing.assert_array_equal(to_grey(colours.astype(np.uint8)), expected.round())


def test_the_splits_and_what_is_in_them(tmp_path):
    rgb, labels = BATCHES["test_batch"]
    rgb = rgb * np.array([[1]] * 19 + [[0]], np.uint8)  # black is a value, no padding
    repeated = np.concatenate([rgb[:1], BATCHES["data_batch_2"][0][1:]])
    changes = {"test_batch": (rgb, labels), "data_batch_2": (repeated, labels)}
    write(tmp_path, as_binary(BATCHES | changes))
    train, validation, test = load_all(TinyImage(), tmp_path)
    assert train.num_examples + validation.num_examples == 99  # one is in test too
    assert np.bincount(validation.labels).sum() in (9, 10)
    assert test.labels.tolist() == labels.tolist()
    assert test.lengths.tolist() == [1024] * BATCH_SIZE
    np.testing.assert_array_equal(test.inputs, to_grey(rgb.reshape(-1, 3, 1024)))


def test_both_formats_folders_and_archives_are_the_same_data(tmp_path):
    write(tmp_path / "a", as_binary())
    write(tmp_path / "b", as_pickles())
    write(tmp_path / "c", {"c.tar.gz": tar_of(as_pickles())})
    archive = Image.archives[0].__class__("http://127.0.0.1:1/c.tar.gz", 1)
    task = type("T", (TinyImage,), {"archives": [archive]})()
    found = [hashes(task, tmp_path / place) for place in "abc"]
    assert found[0] == found[1] == found[2]


BINARY = as_binary()["cifar-10-batches-bin/data_batch_3.bin"]


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("bin", BINARY[:-1], "61,459 bytes are not whole records of 3,073"),
        ("bin", BINARY[:-3073], "19 pictures and 19 labels, not 20 of each"),
        ("bin", b"\x0a" + BINARY[1:], "labels .* 10.* are not 0 to 9"),
        ("bin", None, "has no data_batch_3"),
        ("py", changed(labels=[1] * 19), "20 pictures and 19 labels, not 20 of each"),
        ("py", changed()[:1009], "not a batch in pickle format"),
        ("py", changed(data=BATCHES["test_batch"][0][:, 1:]), "not a uint8 array"),
        ("py", changed(data=np.zeros((20, 3072), np.int32)), "not a uint8 array"),
    ],
)
def test_what_is_wrong_in_a_batch(tmp_path, form, content, message):
    files, suffix = (as_binary(), ".bin") if form == "bin" else (as_pickles(), "")
    write(tmp_path, files | {f"cifar-10-batches-{form}/data_batch_3{suffix}": content})
    with pytest.raises(DataError, match=message) as caught:
        TinyImage().load("train", tmp_path)
    assert f"{tmp_path}" in str(caught.value)
    assert "data_batch_3" in str(caught.value)


def test_a_pickle_is_looked_through_and_never_run(tmp_path):
    class Mischief:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    rgb = BATCHES["test_batch"][0]
    for content in (
        changed(filenames=Mischief()),
        changed(data=np.asfortranarray(rgb)),
        changed().replace(b"|NNNJ", b"|NJ"),  # reading this state, numpy crashes
    ):
        found, labels = parse_pickle(content)
        np.testing.assert_array_equal(found, rgb)
        assert labels.tolist() == [1] * BATCH_SIZE
    assert not (tmp_path / "ran").exists()


def test_pictures_are_whole():
    with pytest.raises(DataError, match="max_length must be 1024, all pixels"):
        Image(max_length=512)
