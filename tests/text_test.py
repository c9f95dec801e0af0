"""Text: tiny archives in the official layout through the real reader."""

import hashlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.archives import Archive
from lra_tasks.split import DataError
from lra_tasks.text import Text, decode_bytes, encode_bytes
from tests.archive_server import (
    hashes,
    load_all,
    serve,
    tar_of,
    texts_of,
    write,
    write_tfds,
)

PER_CLASS = 20


class TinyText(Text):
    reviews_per_class = PER_CLASS


def make_reviews():
    """aclImdb/ as it is published, other files included."""
    files = {"aclImdb/README": b"about", "aclImdb/train/unsup/0_0.txt": b"unlabelled"}
    for split in ("train", "test"):
        files[f"aclImdb/{split}/urls_pos.txt"] = b"http"
        for polarity, rating in (("pos", 9), ("neg", 2)):
            for number in range(PER_CLASS):
                review = f"{split} {polarity} {number}: naïve<br />{'x' * 7 * number}"
                name = f"aclImdb/{split}/{polarity}/{number}_{rating}.txt"
                files[name] = f"{review} \n".encode()
    return files


REVIEWS = make_reviews()


def test_make_splits_by_hand(tmp_path, capsys):
    repeated = REVIEWS["aclImdb/test/pos/5_9.txt"]
    write(tmp_path, REVIEWS | {"aclImdb/train/neg/3_2.txt": repeated})
    task = TinyText(max_length=60)
    splits = load_all(task, tmp_path)
    assert "1 examples left out of" in capsys.readouterr().err
    assert splits[0].num_examples + splits[1].num_examples == 39
    assert np.bincount(splits[2].labels).tolist() == [20, 20]
    for split in splits:
        assert split.inputs.shape[1] == split.lengths.max() == 60
        for text, label in texts_of(task, split):
            place, polarity, number = text.partition(":")[0].split()
            assert place == ("test" if split is splits[2] else "train")
            assert label == (polarity == "pos")
            name = f"aclImdb/{place}/{polarity}/{number}_{9 if label else 2}.txt"
            assert text == REVIEWS[name].strip()[:60].decode()
    one = hashes(task, tmp_path)
    other = hashes(TinyText(seed=1, max_length=60), tmp_path)
    assert [a == b for a, b in zip(one, other, strict=True)] == [False, False, True]


def test_every_source_gives_the_same_data(tmp_path, monkeypatch):
    content = tar_of(REVIEWS)
    write(tmp_path, {f"by_hand/{Text.archive.name}": content})
    write(tmp_path / "folder", REVIEWS)
    rows = {"train": [], "test": []}  # in an order of its own, as TFDS has it
    for name in sorted(REVIEWS, key=hash):
        _, split, polarity, *_ = [*name.split("/"), "", ""]
        if polarity in ("neg", "pos"):
            rows[split].append({"text": REVIEWS[name].strip(), "label": polarity})
    label = tfds.features.ClassLabel(names=["neg", "pos"])
    features = {"text": tfds.features.Text(), "label": label}
    write_tfds(tmp_path / "tfds", "imdb_reviews/plain_text", features, rows)
    places = [("folder", None), ("by_hand", None), ("empty", str(tmp_path / "folder"))]
    places += [("empty", str(tmp_path / "tfds"))]
    found = [hashes(TinyText(source_dir=x), tmp_path / place) for place, x in places]
    with serve(content) as (url, seen):
        md5 = hashlib.md5(content).hexdigest()
        archive = Archive(f"{url}/{Text.archive.name}", ("aclImdb",), md5)
        fetched = type("T", (TinyText,), {"archive": archive})
        found.append(hashes(fetched(), tmp_path / "download"))
    assert len(seen) == 1
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    found.append(hashes(TinyText(), tmp_path / "nothing"))
    assert all(each == found[0] for each in found)


def test_encode_bytes_shifts_by_one_and_comes_back():
    tokens, lengths = encode_bytes(["abc", "日本x", "", "naïve\udcff"], 6, 5)
    assert tokens.dtype == np.uint8
    assert tokens[0].tolist() == [98, 99, 100, 0, 0, 0]
    assert lengths.tolist() == [3, 5, 0, 5]
    back = [decode_bytes(row) for row in tokens]
    assert back == ["abc", "日\\xe6\\x9c", "", "naïv"]


def test_make_splits_refuses_an_incomplete_folder(tmp_path):
    write(tmp_path, REVIEWS | {"aclImdb/train/pos/3_9.txt": None})
    message = f"{tmp_path}.* is incomplete: train has 20 neg, 19 pos, not 20 of each"
    with pytest.raises(DataError, match=message):
        TinyText().load("train", tmp_path)
    assert not list(tmp_path.rglob("*.json"))
