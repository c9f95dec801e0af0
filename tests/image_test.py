"""Image: tiny batches in both official formats through the real reader."""

import io
import os
import pickle

import numpy as np
import pytest

from lra_tasks.image import Image, to_grey
from lra_tasks.split import DataError
from tests.archive_server import archive_at, serve, tar_of

BATCH_SIZE = 20
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


class TinyImage(Image):
    batch_size = BATCH_SIZE


class Python2Pickler(pickle._Pickler):
    """Protocol 2 as Python 2 wrote it: its str, which is bytes here."""

    def save_str(self, text):
        text = text if isinstance(text, bytes) else text.encode()
        self.write(pickle.BINSTRING + len(text).to_bytes(4, "little") + text)

    dispatch = pickle._Pickler.dispatch | {bytes: save_str, str: save_str}


def pickle_as_python_2(batch):
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(batch)
    return buffer.getvalue().replace(b"cnumpy._core.", b"cnumpy.core.")


def make_batches():
    rng = np.random.default_rng(0)
    labels = np.arange(BATCH_SIZE) % 10
    return {
        name: (
            rng.integers(0, 256, (BATCH_SIZE, 3072)).astype(np.uint8),
            rng.permutation(labels),
        )
        for name in NAMES
    }


BATCHES = make_batches()


def as_binary(batches=BATCHES):
    files = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    for name, (rgb, labels) in batches.items():
        records = np.concatenate([labels[:, None].astype(np.uint8), rgb], axis=1)
        files[f"cifar-10-batches-bin/{name}.bin"] = records.tobytes()
    return files


def as_pickles(batches=BATCHES):
    files = {"cifar-10-batches-py/batches.meta": b"not read"}
    for name, (rgb, labels) in batches.items():
        batch = {"batch_label": name, "labels": labels.tolist(), "data": rgb}
        files[f"cifar-10-batches-py/{name}"] = pickle_as_python_2(batch)
    return files


def unpack(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def load_all(task, data_dir):
    return [task.load(split, data_dir) for split in ("train", "validation", "test")]


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
    unpack(as_binary(), tmp_path)
    train, validation, test = load_all(TinyImage(), tmp_path)
    assert np.bincount(train.labels).tolist() == [9] * 10
    assert np.bincount(validation.labels).tolist() == [1] * 10
    rgb, labels = BATCHES["test_batch"]
    assert test.labels.tolist() == labels.tolist()
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


def test_black_is_a_value_and_not_padding(tmp_path):
    rgb, labels = BATCHES["test_batch"]
    black = BATCHES | {
        "test_batch": (rgb * np.array([[1]] * 19 + [[0]], np.uint8), labels)
    }
    unpack(as_binary(black), tmp_path)
    test = TinyImage().load("test", tmp_path)
    assert test.lengths.tolist() == [1024] * BATCH_SIZE
    assert not test.inputs[19].any()


def test_both_formats_archives_and_downloads_are_the_same_data(tmp_path):
    packed = [tar_of(as_binary()), tar_of(as_pickles())]
    names = ["cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"]
    unpack(as_binary(), tmp_path / "a")
    unpack(as_pickles(), tmp_path / "b")
    for place, name, content in zip("cd", names, packed, strict=True):
        unpack({name: content}, tmp_path / place)
    with serve(packed[0]) as (url, seen):
        archives = [
            archive_at(url, content, name)
            for name, content in zip(names, packed, strict=True)
        ]
        task = type("T", (TinyImage,), {"archives": archives})()
        hashes = [
            [split.content_hash() for split in load_all(task, tmp_path / place)]
            for place in "abcde"
        ]
    assert len(seen) == 1
    assert all(each == hashes[0] for each in hashes)


def test_a_picture_in_train_and_test_counts_in_test_only(tmp_path):
    rgb = BATCHES["data_batch_2"][0].copy()
    rgb[7] = BATCHES["test_batch"][0][3]
    unpack(
        as_binary(BATCHES | {"data_batch_2": (rgb, BATCHES["data_batch_2"][1])}),
        tmp_path,
    )
    splits = load_all(TinyImage(), tmp_path)
    assert splits[0].num_examples + splits[1].num_examples == 99
    assert splits[2].num_examples == 20


class Mischief:
    def __reduce__(self):
        return os.system, ("touch {}",)


def changed(**changes):
    batch = {"labels": [1] * BATCH_SIZE, "data": BATCHES["test_batch"][0]} | changes
    return pickle_as_python_2(batch)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(extra=Mischief()), "the pickle asks for 'posix system': refused"),
        (pickle.dumps(os.getcwd), "the pickle uses FRAME: refused"),
        (pickle.dumps(np.load, 2), "the pickle asks for 'numpy load': refused"),
        (b"\x80\x02c\x1b[2Jx\nload\n.", r"asks for '\\x1b\[2Jx load': refused"),
        (b"\x80\x02N.", "not a batch in pickle format"),
        (changed()[:1009], "not a batch in pickle format"),
        (b"", "not a batch in pickle format"),
        (pickle_as_python_2([1, 2]), "not a batch in pickle format"),
        (changed(data=BATCHES["test_batch"][0][:, 1:]), "not a uint8 array"),
        (changed(data=np.zeros((BATCH_SIZE, 3072), np.int32)), "not a uint8 array"),
        (changed(data=[1, 2]), "not a uint8 array"),
        (changed(labels=["1"] * BATCH_SIZE), "labels are not a list of integers"),
        (changed(labels=[1] * 19), "20 pictures and 19 labels, not 20 of each"),
        (changed(labels=[1] * 19 + [10]), "the label 10 is not 0 to 9"),
        (changed(labels=[1] * 19 + [-1]), "the label -1 is not 0 to 9"),
        (None, "has no data_batch_3"),
    ],
)
def test_what_is_wrong_in_a_pickle(tmp_path, content, message):
    files = as_pickles() | {"cifar-10-batches-py/data_batch_3": content}
    unpack({name: text for name, text in files.items() if text is not None}, tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        TinyImage().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "data_batch_3" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "image").rglob("*.json"))


BINARY = as_binary()["cifar-10-batches-bin/data_batch_3.bin"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BINARY[:-1], "61,459 bytes are no whole records of 3,073"),
        (BINARY[:-3073], "19 pictures and 19 labels, not 20 of each"),
        (b"", "0 pictures and 0 labels, not 20 of each"),
        (b"\x0a" + BINARY[1:], "the label 10 is not 0 to 9"),
        (None, "has no data_batch_3"),
    ],
)
def test_what_is_wrong_in_a_binary_batch(tmp_path, content, message):
    files = as_binary() | {"cifar-10-batches-bin/data_batch_3.bin": content}
    unpack({name: text for name, text in files.items() if text is not None}, tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        TinyImage().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "data_batch_3" in str(caught.value)
    assert not list((tmp_path / "image").rglob("*.json"))


def test_pictures_are_whole():
    with pytest.raises(DataError, match="max_length must be 1024, all pixels"):
        Image(max_length=512)
