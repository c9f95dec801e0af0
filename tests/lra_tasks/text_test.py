"""Text and Retrieval: tiny files in the official layouts through the real readers."""

import hashlib

import numpy as np
import pytest
import tensorflow_datasets as tfds
from tokenizers import Tokenizer, models

from lra_tasks.archives import Archive
from lra_tasks.errors import DataError
from lra_tasks.subwords import SPECIAL
from lra_tasks.text import Retrieval, Text, decode_bytes, encode_bytes
from tests.lra_tasks.archive_server import serve, tar_of, write, write_tfds
from tests.lra_tasks.splits import hashes, load_all, texts_of

PER_CLASS = 20


class TinyText(Text):
    reviews_per_class = PER_CLASS


RATINGS = {"pos": 9, "neg": 2}


def review_name(split, polarity, number):
    """The name of a review's file in aclImdb/."""
    return f"aclImdb/{split}/{polarity}/{number}_{RATINGS[polarity]}.txt"


def make_reviews():
    """aclImdb/ as it is published, other files included."""
    files = {"aclImdb/README": b"about", "aclImdb/train/unsup/0_0.txt": b"unlabelled"}
    for split in ("train", "test"):
        files[f"aclImdb/{split}/urls_pos.txt"] = b"http"
        for polarity in RATINGS:
            for number in range(PER_CLASS):
                review = f"{split} {polarity} {number}: naïve<br />{'x' * 7 * number}"
                name = review_name(split, polarity, number)
                files[name] = f"{review} \n".encode()
    return files


REVIEWS = make_reviews()


def test_make_splits_by_hand(tmp_path, capsys):
    repeated = REVIEWS[review_name("test", "pos", 5)]
    write(tmp_path, REVIEWS | {review_name("train", "neg", 3): repeated})
    task = TinyText(max_length=60)

    train, validation, test = load_all(task, tmp_path)

    assert "1 example left out of" in capsys.readouterr().err
    assert train.num_examples + validation.num_examples == 39
    assert np.bincount(test.labels).tolist() == [20, 20]
    for split, folder in ((train, "train"), (validation, "train"), (test, "test")):
        assert split.inputs.shape[1] == split.lengths.max() == 60
        for text, label in texts_of(task, split):
            text_folder, polarity, number = text.partition(":")[0].split()
            assert text_folder == folder
            assert label == (polarity == "pos")
            review = REVIEWS[review_name(folder, polarity, number)]
            assert text == review.strip()[:60].decode()


def test_the_seed_decides_on_validation_and_leaves_test_alone(tmp_path):
    write(tmp_path, REVIEWS)
    train, validation, test = hashes(TinyText(max_length=60), tmp_path)
    other = hashes(TinyText(seed=1, max_length=60), tmp_path)
    assert other[0] != train
    assert other[1] != validation
    assert other[2] == test


def write_reviews_as_tfds(folder):
    """Writes the reviews as TFDS has them, in an order of its own."""
    rows = {}
    for split in ("train", "test"):
        names = [
            review_name(split, polarity, number)
            for polarity in RATINGS
            for number in range(PER_CLASS)
        ]
        rows[split] = [
            {"text": REVIEWS[name].strip(), "label": name.split("/")[2]}
            for name in names[::-1]
        ]
    features = {
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["neg", "pos"]),
    }
    write_tfds(folder, "imdb_reviews/plain_text", features, rows)


def test_every_source_gives_the_same_data(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    write(folder, REVIEWS)
    archive_bytes = tar_of(REVIEWS)
    write(tmp_path, {f"archive/{Text.archive.name}": archive_bytes})
    write_reviews_as_tfds(tmp_path / "tfds")
    empty = tmp_path / "empty"

    expected = hashes(TinyText(), folder)
    assert hashes(TinyText(), tmp_path / "archive") == expected
    assert hashes(TinyText(source_dir=str(folder)), empty) == expected
    assert hashes(TinyText(source_dir=str(tmp_path / "tfds")), empty) == expected

    with serve(archive_bytes) as (url, requests):

        class DownloadedText(TinyText):
            archive = Archive(
                url=f"{url}/{Text.archive.name}",
                folders=("aclImdb",),
                md5=hashlib.md5(archive_bytes).hexdigest(),
            )

        assert hashes(DownloadedText(), tmp_path / "download") == expected
    assert len(requests) == 1

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    assert hashes(TinyText(), tmp_path / "nothing") == expected


def test_encode_bytes_keeps_what_fits_of_a_larger_number_of_bytes():
    _, lengths = encode_bytes(["abcdefgh", "abc"], 4, 6)
    assert lengths.tolist() == [4, 3]


def test_encode_bytes_shifts_by_one_and_comes_back():
    tokens, lengths = encode_bytes(["abc", "日本x", "", "naïve\udcff"], 6, 5)
    assert tokens.dtype == np.uint8
    assert tokens[0].tolist() == [98, 99, 100, 0, 0, 0]
    assert lengths.tolist() == [3, 5, 0, 5]
    assert [decode_bytes(row) for row in tokens] == ["abc", "日\\xe6\\x9c", "", "naïv"]


WHITE_SPACE = " \n\t\r\v\f"


@pytest.mark.parametrize("tokenizer", [None, "byte"])
def test_encode_reads_a_text_as_training_does(tokenizer):
    """Lines of a file end with a line feed, and training's reviews do not.

    TFDS strips the white space of ASCII alone.
    """
    task = Text(max_length=32, tokenizer=tokenizer)
    inputs, lengths = task.encode(["A film.", "\xa0A film."])
    padded = task.encode([f"{WHITE_SPACE}A film.{WHITE_SPACE}", "\xa0A film.\n"])
    np.testing.assert_array_equal(padded[0], inputs)
    np.testing.assert_array_equal(padded[1], lengths)


def test_subwords_of_as_many_ids_as_bytes_have_room_for_the_last(tmp_path):
    names = [*SPECIAL, *(f"w{i}" for i in range(252))]
    ids = {name: i for i, name in enumerate(names)}
    model = models.WordLevel(ids, unk_token="[UNK]")
    path = tmp_path / "tokenizer.json"
    Tokenizer(model).save(str(path))
    task = Text(tokenizer=str(path))
    assert task.vocab_size == 257
    assert task.dtype(256) == 256


def test_encode_keeps_the_white_space_of_papers():
    _, lengths = Retrieval(max_length=32).encode([" one paper ", "one paper"])
    assert lengths.tolist() == [11, 9]


@pytest.mark.parametrize(
    ("polarity", "counts"), [("pos", "20 neg, 19 pos"), ("neg", "19 neg, 20 pos")]
)
def test_make_splits_refuses_an_incomplete_folder(tmp_path, polarity, counts):
    write(tmp_path, REVIEWS | {review_name("train", polarity, 3): None})
    message = f"{tmp_path}.* is incomplete: train has {counts}, not 20 of each"
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
    """A line of a release's file."""
    return b"\t".join([label, b"A", b"B", PAPERS[first], PAPERS[second]])


PAIRS = {
    "new_aan_pairs.train.tsv": [
        pair(b"1.0", "P1", "P2"),
        pair(b"0.0", "P2", "P3"),
        pair(b"1", "P2", "P1"),
        pair(b"0", "P4", "P1"),
        # Test has this pair in the other order.
        pair(b"0", "P5", "P3"),
    ],
    "new_aan_pairs.eval.tsv": [pair(b"0.0", "P4", "P5"), pair(b"1.0", "P1", "P5")],
    "new_aan_pairs.test.tsv": [pair(b"1.0", "P3", "P5"), pair(b"1.0", "P2", "P6")],
}
TSV_DATA = "lra_release/lra_release/tsv_data"


def release():
    """The files of a release by their names."""
    return {name: b"\n".join(lines) + b"\n" for name, lines in PAIRS.items()}


def document(split, row):
    """The bytes of a row."""
    tokens = split.inputs[row, : split.lengths[row]]
    return bytes((tokens - 1).astype(np.uint8))


@pytest.mark.parametrize("task", [Text(), Retrieval()])
def test_encode_keeps_4000_bytes(task):
    _, lengths = task.encode(["x" * 5_000, "x" * 10])
    assert lengths.tolist() == [4_000, 10]


def test_retrieval_keeps_each_document_once(tmp_path, capsys):
    write(tmp_path / TSV_DATA, release())

    splits = load_all(Retrieval(max_length=17), tmp_path)

    stderr = capsys.readouterr().err
    for name, size, released in (
        ("train", 5, "147,086"),
        ("eval", 2, "18,090"),
        ("test", 2, "17,437"),
    ):
        line = f"new_aan_pairs.{name}.tsv: {size} pairs, the release has {released}"
        assert line in stderr
    assert "1 example left out of train" in stderr
    assert [split.labels.tolist() for split in splits] == [[1, 0, 1, 0], [0, 1], [1, 1]]
    # The first 17 bytes of P2 and P6 are equal: they are one document.
    assert [len(split.inputs) for split in splits] == [4, 3, 3]
    for split, lines in zip(splits, PAIRS.values(), strict=True):
        # Of train the last pair is left out.
        kept_lines = lines[: len(split.pairs)]
        for rows, line in zip(split.pairs, kept_lines, strict=True):
            *_, first_text, second_text = line.split(b"\t")
            assert document(split, rows[0]) == first_text[:17]
            assert document(split, rows[1]) == second_text[:17]


def test_retrieval_reads_folder_archive_and_windows_line_ends(tmp_path):
    members = {f"{TSV_DATA}/{name}": content for name, content in release().items()}
    listops = {"lra_release/listops-1000/basic_train.tsv": b"x" * 100_003}
    # The archive ends in the middle of ListOps: what is behind the pairs is not read.
    plain = tar_of(members | listops, "w")[:20_011]
    windows = {name: text.replace(b"\n", b"\r\n") for name, text in release().items()}
    write(tmp_path / "plain", {"lra_release.gz": plain})
    write(tmp_path / "gzip", {"lra_release.gz": tar_of(listops | members, "w:gz")})
    write(tmp_path / "windows/lra_release/tsv_data", windows)

    expected = hashes(Retrieval(), tmp_path / "plain")
    assert hashes(Retrieval(), tmp_path / "gzip") == expected
    assert hashes(Retrieval(), tmp_path / "windows") == expected
    for name in ("plain", "windows", "windows/lra_release"):
        task = Retrieval(source_dir=str(tmp_path / name))
        assert hashes(task, tmp_path / "empty") == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no new_aan_pairs for validation"),
        (b"1.0\tP1\tP2\tonly one\n", "eval.tsv, line 1 is not five columns"),
        (b"2\tP1\tP2\tone\ttwo\n", "line 1 is not five columns: label 0 or 1"),
    ],
)
def test_retrieval_names_a_wrong_file(tmp_path, content, message):
    files = release() | {"new_aan_pairs.eval.tsv": content}
    write(tmp_path / "lra_release" / "tsv_data", files)
    with pytest.raises(DataError, match=f"{tmp_path}.*{message}"):
        Retrieval().load("train", tmp_path)
