"""Text: tiny archives in the official layout through the real reader."""

import numpy as np
import pytest

from lra_tasks.split import DataError
from lra_tasks.text import Text
from tests.archive_server import archive_at, serve, tar_of

PER_CLASS = 20


class TinyText(Text):
    reviews_per_class = PER_CLASS


def make_reviews():
    """aclImdb/ as it is published, other files included."""
    files = {"aclImdb/README": b"about", "aclImdb/train/unsup/0_0.txt": b"unlabelled"}
    for split in ("train", "test"):
        files[f"aclImdb/{split}/urls_pos.txt"] = b"http"
        for polarity, rating in (("pos", 9), ("neg", 2)):
            for number in reversed(range(PER_CLASS)):
                review = f"{split} {polarity} {number}: naïve<br />{'x' * 7 * number}"
                name = f"aclImdb/{split}/{polarity}/{number}_{rating}.txt"
                files[name] = review.encode()
    return files


REVIEWS = make_reviews()


def unpack(files, folder):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def load_all(task, data_dir):
    return [task.load(split, data_dir) for split in ("train", "validation", "test")]


def texts_of(task, split):
    return [
        task.decode(row[:length])
        for row, length in zip(split.inputs, split.lengths, strict=True)
    ]


def test_the_splits_and_what_is_in_them(tmp_path):
    unpack(REVIEWS, tmp_path)
    task = TinyText()
    train, validation, test = load_all(task, tmp_path)
    assert train.inputs.shape == (36, 4000)
    assert [
        np.bincount(each.labels).tolist() for each in (train, validation, test)
    ] == [
        [18, 18],
        [2, 2],
        [20, 20],
    ]
    for split in (train, validation, test):
        for text, label in zip(texts_of(task, split), split.labels, strict=True):
            place, polarity, number = text.partition(":")[0].split()
            assert place == ("test" if split is test else "train")
            assert label == (polarity == "pos")
            assert text.endswith(": naïve<br />" + "x" * 7 * int(number))
    rows = {bytes(row) for each in (train, validation, test) for row in each.inputs}
    assert len(rows) == 4 * PER_CLASS


def test_long_reviews_are_cut(tmp_path):
    unpack(REVIEWS, tmp_path)
    test = TinyText(max_length=31).load("test", tmp_path)
    assert test.inputs.shape == (40, 31)
    assert test.lengths.max() == 31
    assert bytes(test.inputs[3] - 1) == REVIEWS["aclImdb/test/neg/3_2.txt"][:31]


def test_archive_folder_and_download_are_the_same_data(tmp_path):
    content = tar_of(REVIEWS)
    for name in ("folder", "by_hand", "source"):
        (tmp_path / name).mkdir()
    unpack(REVIEWS, tmp_path / "folder")
    hashes = []
    with serve(content) as (url, seen):
        task_class = type(
            "T", (TinyText,), {"archive": archive_at(url, content, "a.tar.gz")}
        )
        (tmp_path / "by_hand" / "a.tar.gz").write_bytes(content)
        (tmp_path / "source" / "a.tar.gz").write_bytes(content)
        for place, source in (
            ("folder", None),
            ("by_hand", None),
            ("download", None),
            ("elsewhere", str(tmp_path / "source")),
        ):
            splits = load_all(task_class(source_dir=source), tmp_path / place)
            hashes.append([split.content_hash() for split in splits])
    assert len(seen) == 1
    assert all(each == hashes[0] for each in hashes)


def test_the_seed_draws_the_validation_split(tmp_path):
    unpack(REVIEWS, tmp_path)
    hashes = [
        [split.content_hash() for split in load_all(TinyText(seed=seed), tmp_path / to)]
        for seed, to in ((0, "."), (0, "."), (1, "."))
    ]
    assert hashes[0] == hashes[1]
    assert hashes[0][1] != hashes[2][1]
    assert hashes[0][2] == hashes[2][2]


def test_validation_on_test_warns(tmp_path, capsys):
    unpack(REVIEWS, tmp_path)
    train, validation, test = load_all(TinyText(validation="test"), tmp_path)
    assert train.num_examples == 40
    assert validation.content_hash() == test.content_hash()
    assert "validation is the test split" in capsys.readouterr().err
    load_all(TinyText(), tmp_path)
    assert "validation is" not in capsys.readouterr().err


def test_a_review_in_train_and_test_counts_in_test_only(tmp_path, capsys):
    repeated = REVIEWS["aclImdb/test/pos/5_9.txt"]
    unpack(REVIEWS | {"aclImdb/train/neg/3_2.txt": repeated}, tmp_path)
    train, validation, test = load_all(TinyText(), tmp_path)
    assert train.num_examples + validation.num_examples == 39
    assert test.num_examples == 40
    assert "1 examples left out of" in capsys.readouterr().err


def test_bytes_that_are_no_utf_8_are_kept(tmp_path):
    unpack(REVIEWS | {"aclImdb/test/neg/0_2.txt": b"\xff\xfe\r\n\x00"}, tmp_path)
    splits = load_all(TinyText(), tmp_path)
    assert splits[2].inputs[0, :6].tolist() == [256, 255, 14, 11, 1, 0]
    assert splits[2].lengths[0] == 5
    assert {split.inputs.dtype for split in splits} == {np.dtype(np.uint16)}


@pytest.mark.parametrize("form", ["folder", "archive"])
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/pos/3_9.txt", b"", "train/pos/3_9.txt is empty"),
        ("train/pos/3_9.txt", None, "not whole: train/pos has 19 reviews, not 20"),
        ("test/neg/20_2.txt", b"x", "not whole: test/neg has 21 reviews, not 20"),
        ("train/pos/3_4.txt", b"x", "3_4.txt: a rating of 4 is not pos"),
        ("train/neg/3_11.txt", b"x", "3_11.txt: a rating of 11 is not neg"),
        ("train/neg/x_2.txt", b"x", "x_2.txt is not named ID_RATING.txt"),
        ("train/neg/3_2.csv", b"x", "3_2.csv is not named ID_RATING.txt"),
        ("train/neg/3_2.txt", b"x" * 2**20 + b"x", "is longer than 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_in_the_reviews(tmp_path, form, name, content, message):
    files = REVIEWS | {f"aclImdb/{name}": content}
    files = {name: content for name, content in files.items() if content is not None}
    task = TinyText()
    if form == "folder":
        unpack(files, tmp_path)
    else:
        packed = tar_of(files)
        archive = archive_at("http://127.0.0.1:1", packed, "aclImdb_v1.tar.gz")
        (tmp_path / "aclImdb_v1.tar.gz").write_bytes(packed)
        task = type("T", (TinyText,), {"archive": archive})()
    with pytest.raises(DataError, match=message) as caught:
        task.load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "text").rglob("*.json"))


def test_the_published_archive_and_no_other(tmp_path):
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(tar_of(REVIEWS))
    with pytest.raises(DataError, match="not 7c2ac02c03563afcf9b574c7e56c153a"):
        Text().load("train", tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validation": "train"}, "validation must be held_out or test, not 'train'"),
        ({"max_length": 0}, "max_length must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
    ],
)
def test_options_that_are_turned_away(options, message):
    with pytest.raises(DataError, match=message):
        Text(**options)
