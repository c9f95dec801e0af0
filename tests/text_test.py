"""Text: tiny archives in the official layout through the real reader."""

import numpy as np
import pytest

from lra_tasks import byte_tokens
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


def test_the_splits_and_what_is_in_them(tmp_path, capsys):
    repeated = REVIEWS["aclImdb/test/pos/5_9.txt"]
    write(tmp_path, REVIEWS | {"aclImdb/train/neg/3_2.txt": repeated})
    task = TinyText(max_length=60)
    splits = load_all(task, tmp_path)
    assert "1 examples left out of" in capsys.readouterr().err
    assert splits[0].num_examples + splits[1].num_examples == 39
    assert np.bincount(splits[2].labels).tolist() == [20, 20]
    for split in splits:
        assert split.inputs.shape[1] == split.lengths.max() == 60
        for row, n, label in zip(
            split.inputs, split.lengths, split.labels, strict=True
        ):
            text = task.decode(row[:n])
            place, polarity, number = text.partition(":")[0].split()
            assert place == ("test" if split is splits[2] else "train")
            assert label == (polarity == "pos")
            name = f"aclImdb/{place}/{polarity}/{number}_{9 if label else 2}.txt"
            assert text == REVIEWS[name][:60].decode()
    one, other = (
        hashes(task, tmp_path),
        hashes(TinyText(seed=1, max_length=60), tmp_path),
    )
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, False, True]


def test_archive_folder_and_download_are_the_same_data(tmp_path, monkeypatch):
    content = tar_of(REVIEWS)
    write(tmp_path / "folder", REVIEWS)
    write(tmp_path, {"by_hand/toy.tar.gz": content, "source/toy.tar.gz": content})
    sources = dict.fromkeys(("folder", "by_hand", "download"))
    sources["elsewhere"] = str(tmp_path / "source")
    link = tmp_path / "linked" / "toy.tar.gz"  # to a file of another name
    write(tmp_path, {"linked/store": content})
    link.symlink_to("store")
    sources["anywhere"] = str(link)
    with serve(content) as (url, seen):
        task_class = type("T", (TinyText,), {"archive": archive_at(url, content)})
        found = [
            hashes(task_class(source_dir=source), tmp_path / place)
            for place, source in sources.items()
        ]
    monkeypatch.setenv("LRA_DATA_DIR", str(tmp_path / "folder"))
    found.append(hashes(TinyText(seed=0), None))
    assert len(seen) == 1
    assert all(each == found[0] for each in found)


def test_validation_on_test_warns(tmp_path, capsys):
    write(tmp_path, REVIEWS)
    train, validation, test = load_all(TinyText(validation="test"), tmp_path)
    assert train.num_examples == 40
    assert validation.content_hash == test.content_hash
    assert "validation is the test split" in capsys.readouterr().err
    with pytest.raises(DataError, match="must be held_out or test, not 'train'"):
        Text(validation="train")


def test_padding_beyond_the_bytes_that_count(tmp_path):
    write(tmp_path, REVIEWS)
    narrow, wide = (
        load_all(TinyText(max_length=width, num_bytes=50), tmp_path)
        for width in (50, 52)
    )
    for one, other in zip(narrow, wide, strict=True):
        assert one.lengths.max() == 50
        np.testing.assert_array_equal(
            np.pad(one.inputs, ((0, 0), (0, 2))), other.inputs
        )
        np.testing.assert_array_equal(one.lengths, other.lengths)
    with pytest.raises(DataError, match="num_bytes must be at least 1, not 0"):
        Text(num_bytes=0)


def test_every_byte_has_its_own_token_and_comes_back(tmp_path):
    every = bytes(range(256))
    write(tmp_path, REVIEWS | {"aclImdb/test/neg/0_2.txt": every})
    splits = load_all(TinyText(), tmp_path)
    assert splits[2].inputs[0, :257].tolist() == [*range(1, 257), 0]
    assert splits[2].lengths[0] == 256
    assert {split.inputs.dtype for split in splits} == {np.dtype(np.uint16)}
    assert byte_tokens.get_dtype([every[:255], "ÿ€".encode()]) is np.uint8
    texts = [b"abc", "日本x".encode(), b"", b"a\xff\x80"]
    tokens, lengths = byte_tokens.encode(texts, 6, np.uint16)
    assert lengths.tolist() == [3, 6, 0, 3]
    back = [byte_tokens.decode(row) for row in tokens]
    assert back == ["abc", "日本", "", "a\\xff\\x80"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train/pos/3_9.txt", b"", "train/pos/3_9.txt is empty"),
        ("train/pos/3_9.txt", None, "is incomplete: train/pos has 19 reviews, not 20"),
        ("train/pos/3_4.txt", b"x", "3_4.txt: a rating of 4 is not pos"),
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
