"""Text: tiny archives in the official layout through the real reader."""

import numpy as np
import pytest

from lra_tasks.split import DataError
from lra_tasks.text import Text
from tests.archive_server import archive_at, hashes, load_all, serve, tar_of, write

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


def texts_of(task, split):
    return [
        task.decode(row[:length])
        for row, length in zip(split.inputs, split.lengths, strict=True)
    ]


def test_the_splits_and_what_is_in_them(tmp_path):
    write(tmp_path, REVIEWS)
    task = TinyText()
    splits = load_all(task, tmp_path)
    classes = [np.bincount(each.labels).tolist() for each in splits]
    assert classes == [[18, 18], [2, 2], [20, 20]]
    for split in splits:
        assert split.inputs.shape[1] == 4000
        for text, label in zip(texts_of(task, split), split.labels, strict=True):
            place, polarity, number = text.partition(":")[0].split()
            assert place == ("test" if split is splits[2] else "train")
            assert label == (polarity == "pos")
            assert text.endswith(": naïve<br />" + "x" * 7 * int(number))
    rows = {bytes(row) for each in splits for row in each.inputs}
    assert len(rows) == 4 * PER_CLASS


def test_long_reviews_are_cut(tmp_path):
    write(tmp_path, REVIEWS)
    test = TinyText(max_length=31).load("test", tmp_path)
    assert test.inputs.shape == (40, 31)
    assert test.lengths.max() == 31
    assert bytes(test.inputs[3] - 1) == REVIEWS["aclImdb/test/neg/3_2.txt"][:31]


def test_archive_folder_and_download_are_the_same_data(tmp_path, monkeypatch):
    content = tar_of(REVIEWS)
    write(tmp_path / "folder", REVIEWS)
    write(tmp_path, {"by_hand/a.tar.gz": content, "source/a.tar.gz": content})
    sources = dict.fromkeys(("folder", "by_hand", "download"))
    sources["elsewhere"] = str(tmp_path / "source")
    with serve(content) as (url, seen):
        archive = archive_at(url, content, "a.tar.gz")
        task_class = type("T", (TinyText,), {"archive": archive})
        found = [
            hashes(task_class(source_dir=source), tmp_path / place)
            for place, source in sources.items()
        ]
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path / "folder"))
    found.append(hashes(TinyText(seed=0), None))
    assert len(seen) == 1
    assert all(each == found[0] for each in found)


def test_the_seed_draws_the_validation_split(tmp_path):
    write(tmp_path, REVIEWS)
    one, other = (hashes(TinyText(seed=seed), tmp_path) for seed in (0, 1))
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, False, True]


def test_validation_on_test_warns(tmp_path, capsys):
    write(tmp_path, REVIEWS)
    train, validation, test = load_all(TinyText(validation="test"), tmp_path)
    assert train.num_examples == 40
    assert validation.content_hash() == test.content_hash()
    assert "validation is the test split" in capsys.readouterr().err
    load_all(TinyText(), tmp_path)
    assert "validation is" not in capsys.readouterr().err


def test_a_review_in_train_and_test_counts_in_test_only(tmp_path, capsys):
    repeated = REVIEWS["aclImdb/test/pos/5_9.txt"]
    write(tmp_path, REVIEWS | {"aclImdb/train/neg/3_2.txt": repeated})
    train, validation, test = load_all(TinyText(), tmp_path)
    assert train.num_examples + validation.num_examples == 39
    assert test.num_examples == 40
    assert "1 examples left out of" in capsys.readouterr().err


def test_bytes_that_are_no_utf_8_are_kept(tmp_path):
    write(tmp_path, REVIEWS | {"aclImdb/test/neg/0_2.txt": b"\xff\xfe\r\n\x00"})
    splits = load_all(TinyText(), tmp_path)
    assert splits[2].inputs[0, :6].tolist() == [256, 255, 14, 11, 1, 0]
    assert splits[2].lengths[0] == 5
    assert {split.inputs.dtype for split in splits} == {np.dtype(np.uint16)}


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
def test_what_is_wrong_in_the_reviews(tmp_path, name, content, message):
    write(tmp_path, REVIEWS | {f"aclImdb/{name}": content})
    with pytest.raises(DataError, match=message) as caught:
        TinyText().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "text").rglob("*.json"))


def test_the_published_archive_and_no_other(tmp_path):
    (tmp_path / "aclImdb_v1.tar.gz").write_bytes(tar_of(REVIEWS))
    with pytest.raises(DataError, match="not 7c2ac02c03563afcf9b574c7e56c153a"):
        Text().load("train", tmp_path)


def test_validation_is_one_of_two():
    with pytest.raises(DataError, match="must be held_out or test, not 'train'"):
        Text(validation="train")
