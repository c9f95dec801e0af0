"""Retrieval: tiny files in the official format through the real reader."""

import numpy as np
import pytest

from lra_tasks.retrieval import Retrieval
from lra_tasks.split import DataError
from tests.archive_server import hashes, load_all, tar_of, write

PAPERS = {
    "P1": b"Nystr\xc3\xb6m \"quoted\" ' b'",
    "P2": b"attention " + b"z" * 50,
    "P3": b"\xff\xfe raw bytes",
    "P4": b"short",
    "P5": b"fifth",
}


def row(label, first, second):
    return b"\t".join(
        [label, first.encode(), second.encode(), PAPERS[first], PAPERS[second]]
    )


FILES = {
    "new_aan_pairs.train.tsv": [
        row(b"1.0", "P1", "P2"),
        row(b"0.0", "P2", "P3"),
        row(b"1", "P2", "P1"),
        row(b"0", "P4", "P1"),
    ],
    "new_aan_pairs.eval.tsv": [row(b"0.0", "P4", "P5"), row(b"1.0", "P1", "P5")],
    "new_aan_pairs.test.tsv": [row(b"1.0", "P3", "P5")],
}
BELOW = "lra_release/lra_release/tsv_data"


def packed(**changes):
    files = {
        name: b"".join(line + b"\n" for line in lines) for name, lines in FILES.items()
    }
    files |= {f"new_aan_pairs.{name}.tsv": content for name, content in changes.items()}
    return {name: content for name, content in files.items() if content is not None}


def document(split, row):
    return bytes((split.inputs[row, : split.lengths[row]] - 1).astype(np.uint8))


def test_each_document_is_kept_once_and_pairs_name_them(tmp_path, capsys):
    write(tmp_path / BELOW, packed())
    splits = load_all(Retrieval(max_length=17), tmp_path)
    assert [split.labels.tolist() for split in splits] == [[1, 0, 1, 0], [0, 1], [1]]
    assert [len(split.inputs) for split in splits] == [4, 3, 2]
    for split, lines in zip(splits, FILES.values(), strict=True):
        for pair, line in zip(split.pairs, lines, strict=True):
            expected = [text[:17] for text in line.split(b"\t")[3:]]
            assert [document(split, row) for row in pair] == expected
    assert {split.inputs.dtype for split in splits} == {np.dtype(np.uint16)}
    assert splits[2].inputs[0, 0] == 256  # \xff
    said = "4 pairs in new_aan_pairs.train.tsv, the release has 147,086"
    assert said in capsys.readouterr().err


def test_folder_archive_and_windows_line_ends_are_the_same_data(tmp_path):
    members = {f"{BELOW}/{name}": content for name, content in packed().items()}
    other = {"lra_release/listops-1000/basic_train.tsv": b"Source\tTarget\n"}
    windows = {name: text.replace(b"\n", b"\r\n") for name, text in packed().items()}
    write(tmp_path / "a", {"lra_release.gz": tar_of(other | members, "w")})
    write(tmp_path / "b", {"lra_release.gz": tar_of(members | other, "w:gz")})
    write(tmp_path / "c" / "tsv_data", packed())
    write(tmp_path / "d" / "lra_release" / "tsv_data", windows)
    found = [hashes(Retrieval(), tmp_path / name) for name in "abcd"]
    task = Retrieval(source_dir=str(tmp_path / "c" / "tsv_data"))
    found.append(hashes(task, tmp_path / "e"))
    assert all(each == found[0] for each in found)


def test_nothing_behind_the_three_files_is_read(tmp_path):
    members = {f"{BELOW}/{name}": content for name, content in packed().items()}
    content = tar_of(members | {"lra_release/more": b"x" * 100_003}, "w")
    write(tmp_path, {"lra_release.gz": content[:20_011]})
    assert Retrieval().load("test", tmp_path).labels.tolist() == [1]


def test_a_pair_in_train_and_test_counts_in_test_only(tmp_path, capsys):
    swapped = row(b"1.0", "P5", "P3") + b"\n"
    train = packed()["new_aan_pairs.train.tsv"] + swapped
    write(tmp_path / "tsv_data", packed(train=train))
    splits = load_all(Retrieval(), tmp_path)
    assert [split.num_examples for split in splits] == [4, 2, 1]
    assert "1 examples left out of train" in capsys.readouterr().err


GOOD = row(b"1.0", "P1", "P2") + b"\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "eval.tsv has no pairs"),
        (None, "has no new_aan_pairs.eval.tsv"),
        (GOOD + b"1.0\tP1\tP2\tonly one\n", r"eval.tsv, line 2: 4 columns, not 5"),
        (GOOD + b"\n", "line 2: 1 columns, not 5"),
        (GOOD + b"2.0\tP1\tP2\tone\ttwo\n", r"line 2: the label b'2\.0' is not 0 or 1"),
        (b"\xff\tP1\tP2\tone\ttwo\n", r"line 1: the label b'\\xff' is not 0 or 1"),
        (GOOD + b"1.0\tP1\tP2\tone\t\n", "line 2: an empty document"),
    ],
)
def test_what_is_wrong_in_a_file(tmp_path, content, message):
    write(tmp_path / "lra_release" / "tsv_data", packed(eval=content))
    with pytest.raises(DataError, match=message) as caught:
        Retrieval().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "retrieval").rglob("*.json"))


def test_the_release_is_never_downloaded_unasked(tmp_path):
    message = r"get https:.*lra_release.gz \(7,700 MB\)"
    with pytest.raises(DataError, match=message) as caught:
        Retrieval().load("train", tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_documents_alike_up_to_the_cut_are_one(tmp_path):
    content = b"1\tA\tB\tsame start, one\tsame start, two\n"
    write(tmp_path / "tsv_data", packed(test=content))
    test = Retrieval(max_length=11).load("test", tmp_path)
    assert test.pairs.tolist() == [[0, 0]]
    assert len(test.inputs) == 1
    assert len(Retrieval().load("test", tmp_path).inputs) == 2
