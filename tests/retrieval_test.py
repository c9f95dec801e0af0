"""Retrieval: tiny files in the official format through the real reader."""

import numpy as np
import pytest

from lra_tasks.split import DataError
from lra_tasks.text import Retrieval
from tests.archive_server import hashes, load_all, tar_of, write

PAPERS = {
    "P1": b"Nystr\xc3\xb6m \"quoted\" ' b'",
    "P2": b"attention, and then one",
    "P3": b"third",
    "P4": b"short",
    "P5": b"fifth",
    "P6": b"attention, and then another",
}


def row(label, first, second):
    return b"\t".join([label, b"A", b"B", PAPERS[first], PAPERS[second]])


FILES = {
    "new_aan_pairs.train.tsv": [
        row(b"1.0", "P1", "P2"),
        row(b"0.0", "P2", "P3"),
        row(b"1", "P2", "P1"),
        row(b"0", "P4", "P1"),
        row(b"0", "P5", "P3"),  # as in test, in the other order
    ],
    "new_aan_pairs.eval.tsv": [row(b"0.0", "P4", "P5"), row(b"1.0", "P1", "P5")],
    "new_aan_pairs.test.tsv": [row(b"1.0", "P3", "P5"), row(b"1.0", "P2", "P6")],
}
BELOW = "lra_release/lra_release/tsv_data"


def packed(**changes):
    files = {x: b"".join(line + b"\n" for line in lines) for x, lines in FILES.items()}
    return files | {f"new_aan_pairs.{x}.tsv": content for x, content in changes.items()}


def document(split, row):
    return bytes((split.inputs[row, : split.lengths[row]] - 1).astype(np.uint8))


def test_each_document_is_kept_once_and_pairs_name_them(tmp_path, capsys):
    write(tmp_path / BELOW, packed())
    splits = load_all(Retrieval(max_length=17), tmp_path)
    said = capsys.readouterr().err
    assert "new_aan_pairs.train.tsv: 5 pairs, the release has 147,086" in said
    assert "1 examples left out of train" in said
    assert [split.labels.tolist() for split in splits] == [[1, 0, 1, 0], [0, 1], [1, 1]]
    assert [len(split.inputs) for split in splits] == [4, 3, 3]  # P2, P6: one
    for split, lines in zip(splits, FILES.values(), strict=True):
        for pair, line in zip(split.pairs, lines, strict=False):
            expected = [text[:17] for text in line.split(b"\t")[3:]]
            assert [document(split, row) for row in pair] == expected


def test_folder_archive_and_windows_line_ends_are_the_same_data(tmp_path):
    members = {f"{BELOW}/{name}": content for name, content in packed().items()}
    other = {"lra_release/listops-1000/basic_train.tsv": b"x" * 100_003}
    windows = {name: text.replace(b"\n", b"\r\n") for name, text in packed().items()}
    plain = tar_of(members | other, "w")[:20_011]  # what is behind them is not read
    write(tmp_path / "a", {"lra_release.gz": plain})
    write(tmp_path / "b", {"lra_release.gz": tar_of(other | members, "w:gz")})
    write(tmp_path / "c" / "lra_release" / "tsv_data", windows)
    found = [hashes(Retrieval(), tmp_path / name) for name in "abc"]
    for name in ("a", "c/lra_release/tsv_data"):
        task = Retrieval(source_dir=str(tmp_path / name))
        found.append(hashes(task, tmp_path / "e"))
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no new_aan_pairs for validation"),
        (b"1.0\tP1\tP2\tonly one\n", "eval.tsv, line 1 is not five columns"),
        (b"2\tP1\tP2\tone\ttwo\n", "line 1 is not five columns: label 0 or 1"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    write(tmp_path / "lra_release" / "tsv_data", packed(eval=content))
    with pytest.raises(DataError, match=f"{tmp_path}.*{message}"):
        Retrieval().load("train", tmp_path)


def test_the_release_is_never_downloaded_unasked(tmp_path):
    message = rf"{tmp_path} has neither .* get https:.*lra_release.gz and put it there"
    with pytest.raises(DataError, match=message):
        Retrieval().load("train", tmp_path)
