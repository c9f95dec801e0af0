"""Text and Retrieval: tiny files in the official layouts through the real readers."""

import hashlib

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.archives import Archive
from lra_tasks.errors import DataError
from lra_tasks.text import Retrieval, Text, decode_bytes, encode_bytes
from tests.lra_tasks.archive_server import (
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
    renamed = (tmp_path / "folder/aclImdb").rename(tmp_path / "imdb reviews")
    found.append(hashes(TinyText(source_dir=str(renamed)), tmp_path / "empty"))
    assert all(each == found[0] for each in found)


def test_encode_bytes_shifts_by_one_and_comes_back():
    tokens, lengths = encode_bytes(["abc", "日本x", "", "naïve\udcff"], 6, 5)
    assert tokens.dtype == np.uint8
    assert tokens[0].tolist() == [98, 99, 100, 0, 0, 0]
    assert lengths.tolist() == [3, 5, 0, 5]
    assert [decode_bytes(row) for row in tokens] == ["abc", "日\\xe6\\x9c", "", "naïv"]


WHITE_SPACE = " \n\t\r\v\f"


def test_encode_reads_a_text_as_training_does():
    """Lines of a file end with a line feed, and training's reviews do not."""
    for options in ({}, {"tokenizer": "byte"}):
        text = Text(max_length=32, **options)
        read = text.encode(["A film.", "\xa0A film."])  # TFDS strips ASCII's alone
        asked = text.encode([f"{WHITE_SPACE}A film.{WHITE_SPACE}", "\xa0A film.\n"])
        np.testing.assert_array_equal(asked[0], read[0])
        np.testing.assert_array_equal(asked[1], read[1])
    # Papers are read with the white space that they have.
    _, lengths = Retrieval(max_length=32).encode([" one paper ", "one paper"])
    assert lengths.tolist() == [11, 9]


def test_make_splits_refuses_an_incomplete_folder(tmp_path):
    write(tmp_path, REVIEWS | {"aclImdb/train/pos/3_9.txt": None})
    message = f"{tmp_path}.* is incomplete: train has 20 neg, 19 pos, not 20 of each"
    with pytest.raises(DataError, match=message):
        TinyText().load("train", tmp_path)
    assert not list(tmp_path.rglob("*.json"))


PAPERS = {
    "P1": b"Nystr\xc3\xb6m \"quoted\" ' b'",
    "P2": b"attention, and then one",
    "P3": b"third",
    "P4": b"short",
    "P5": b"fifth",
    "P6": b"attention, and then another",
}


def pair(label, first, second):
    return b"\t".join([label, b"A", b"B", PAPERS[first], PAPERS[second]])


PAIRS = {
    "new_aan_pairs.train.tsv": [
        pair(b"1.0", "P1", "P2"),
        pair(b"0.0", "P2", "P3"),
        pair(b"1", "P2", "P1"),
        pair(b"0", "P4", "P1"),
        pair(b"0", "P5", "P3"),  # as in test, in the other order
    ],
    "new_aan_pairs.eval.tsv": [pair(b"0.0", "P4", "P5"), pair(b"1.0", "P1", "P5")],
    "new_aan_pairs.test.tsv": [pair(b"1.0", "P3", "P5"), pair(b"1.0", "P2", "P6")],
}
TSV_DATA = "lra_release/lra_release/tsv_data"


def packed(**changes):
    files = {x: b"".join(line + b"\n" for line in lines) for x, lines in PAIRS.items()}
    return files | {f"new_aan_pairs.{x}.tsv": content for x, content in changes.items()}


def document(split, row):
    return bytes((split.inputs[row, : split.lengths[row]] - 1).astype(np.uint8))


def test_retrieval_keeps_each_document_once(tmp_path, capsys):
    write(tmp_path / TSV_DATA, packed())
    splits = load_all(Retrieval(max_length=17), tmp_path)
    said = capsys.readouterr().err
    assert "new_aan_pairs.train.tsv: 5 pairs, the release has 147,086" in said
    assert "1 examples left out of train" in said
    assert [split.labels.tolist() for split in splits] == [[1, 0, 1, 0], [0, 1], [1, 1]]
    assert [len(split.inputs) for split in splits] == [4, 3, 3]  # P2, P6: one
    for split, lines in zip(splits, PAIRS.values(), strict=True):
        for pair, line in zip(split.pairs, lines, strict=False):
            expected = [text[:17] for text in line.split(b"\t")[3:]]
            assert [document(split, row) for row in pair] == expected


def test_retrieval_reads_folder_archive_and_windows_line_ends(tmp_path):
    members = {f"{TSV_DATA}/{name}": content for name, content in packed().items()}
    other = {"lra_release/listops-1000/basic_train.tsv": b"x" * 100_003}
    windows = {name: text.replace(b"\n", b"\r\n") for name, text in packed().items()}
    plain = tar_of(members | other, "w")[:20_011]  # what is behind them is not read
    write(tmp_path / "a", {"lra_release.gz": plain})
    write(tmp_path / "b", {"lra_release.gz": tar_of(other | members, "w:gz")})
    write(tmp_path / "c" / "lra_release" / "tsv_data", windows)
    found = [hashes(Retrieval(), tmp_path / name) for name in "abc"]
    write(tmp_path / "lra/aan", packed())  # as it is also called
    write(tmp_path / "d", {"lra_release.tar.gz": plain})
    for name in ("a", "c/lra_release/tsv_data", "lra/aan", "d", "d/lra_release.tar.gz"):
        found.append(hashes(Retrieval(source_dir=str(tmp_path / name)), tmp_path / "e"))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no new_aan_pairs for validation"),
        (b"1.0\tP1\tP2\tonly one\n", "eval.tsv, line 1 is not five columns"),
        (b"2\tP1\tP2\tone\ttwo\n", "line 1 is not five columns: label 0 or 1"),
    ],
)
def test_retrieval_names_a_wrong_file(tmp_path, content, message):
    write(tmp_path / "lra_release" / "tsv_data", packed(eval=content))
    with pytest.raises(DataError, match=f"{tmp_path}.*{message}"):
        Retrieval().load("train", tmp_path)
