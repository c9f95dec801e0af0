"""GLUE: tiny files in the official formats, and TFDS's; a user's own tables."""

import re
import sys
import types
from functools import partial

import numpy as np
import pandas
import pytest
import tensorflow_datasets as tfds

from lra_tasks import subwords
from lra_tasks.errors import DataError
from lra_tasks.glue import SUBSETS
from lra_tasks.subwords import Vocabulary
from lra_tasks.task import get_task
from tests.commands import ROOT
from tests.lra_tasks.archive_server import hashes, load_all, texts_of, write, write_tfds

DATA = (ROOT / "DATA.md").read_text()

MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence1\tsentence2"
FORMS = {  # header, a line's form with its number i and its label, labels
    "SST-2": ("sentence\tlabel", "it 's \" {i} \t{label}", "01"),
    "MRPC": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '{label}\t7\t{i}\tHe said "{i}\tShe said {i}"\r',
        "01",
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel",
        "{i}\tWhen {i}?\tIn {i}.\t{label}",
        ("entailment", "not_entailment"),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "{i}\t1\t2\tHow {i}?\tWhy {i}?\t{label}",
        "01",
    ),
    "MNLI": (
        f"{MNLI}\tlabel1\tgold_label",
        "{i}\t1\t2\tfiction\t( a )\tA {i}\tB {i}\tneutral\t{label}",
        ("entailment", "neutral", "contradiction"),
    ),
}
SHOWN = {
    "sst2": "[CLS] it 's \" 7 [SEP]",
    "mrpc": '[CLS] He said "7 [SEP] She said 7" [SEP]',
    "qnli": "[CLS] When 7? [SEP] In 7. [SEP]",
    "qqp": "[CLS] How 7? [SEP] Why 7? [SEP]",
    "mnli": "[CLS] A 7 [SEP] B 7 [SEP]",
}


def tsv(folder, start, count):
    header, form, labels = FORMS[folder]
    numbers = range(start, start + count)
    lines = [form.format(i=i, label=labels[i % len(labels)]) for i in numbers]
    return "\n".join([header, *lines, ""]).encode()


def official():
    """What is published; of QQP a line is broken, and one of dev is in train too."""
    files = {}
    for folder in FORMS:
        train = "msr_paraphrase_train.txt" if folder == "MRPC" else "train.tsv"
        files[f"{folder}/{train}"] = tsv(folder, 0, 60)
        files[f"{folder}/test.tsv"] = b"index\tsentence\n0\tnever read\n"
        for name in ("dev", "dev_matched", "dev_mismatched"):
            start = 200 if name == "dev_mismatched" else 100
            files[f"{folder}/{name}.tsv"] = tsv(folder, start, 12)
    files["QQP/train.tsv"] += b"61\t1\t2\tbroken off\n62\t1\t2\tHow 100?\tWhy 100?\t0\n"
    return files


@pytest.mark.parametrize("name", SUBSETS)
def test_make_splits_of_every_subset(tmp_path, capsys, name):
    write(tmp_path, official())
    task = get_task("glue", subset=name, source_dir=str(tmp_path), max_length=64)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits[:3]] == [54, 6, 12]
    said = capsys.readouterr().err
    broken = "QQP/train.tsv: 1 of 62 lines lack a column or have too many: left out"
    assert (broken in said) == (name == "qqp")
    assert ("1 examples left out of" in said) == (name == "qqp")
    assert task.num_classes == len(set(splits[0].labels)) == len(task.label_names)
    texts = dict(pair for split in splits for pair in texts_of(task, split))
    assert texts[SHOWN[name]] == 7 % task.num_classes
    assert "100" in task.decode(splits[2].inputs[0])
    assert len(splits) == (4 if name == "mnli" else 3)
    if name == "mnli":  # both test splits from one training
        assert task.splits[3] == "test_mismatched"
        assert "200" in task.decode(splits[3].inputs[0])


def test_tfds_gives_the_data_of_the_official_files(tmp_path):
    write(tmp_path / "tsv", official())
    files = {"train": (0, 60), "validation_matched": (100, 12)}
    rows = {}
    for split, (start, count) in (files | {"validation_mismatched": (200, 12)}).items():
        numbers = reversed(range(start, start + count))  # an order of its own
        row = {"premise": "A {}", "hypothesis": "B {}"}.items()
        texts = ({"idx": i} | {x: form.format(i) for x, form in row} for i in numbers)
        rows[split] = [x | {"label": x["idx"] % 3} for x in texts]
    features = {x: tfds.features.Text() for x in ("premise", "hypothesis")}
    features |= {"idx": np.int32, "label": tfds.features.ClassLabel(num_classes=3)}
    write_tfds(tmp_path / "tfds", "glue/mnli", features, rows)
    one, other = (
        hashes(get_task("glue", subset="mnli", source_dir=str(tmp_path / x)), tmp_path)
        for x in ("tsv", "tfds")
    )
    assert one == other


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no SST-2/train\.tsv: get it from"),
        (b"sentence\n", r"train\.tsv has no column label"),
        (b"sentence\tlabel\ngood\t2\nbad\t0\n", "its labels are 0,2, not 0,1"),
        (b"sentence\tlabel\ncaf\xe9\t1\n", "is not UTF-8 text"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, content, message):
    write(tmp_path, {"SST-2/dev.tsv": tsv("SST-2", 0, 9), "SST-2/train.tsv": content})
    with pytest.raises(DataError, match=message):
        get_task("glue", source_dir=str(tmp_path)).load("train", tmp_path / "data")


@pytest.mark.parametrize(
    ("sizes", "kept"), [((9, 2), (3, 2)), ((2, 9), (2, 3)), ((9, 9), (3, 2))]
)
def test_row_cuts_a_pair_at_its_longer_text(sizes, kept):
    row = Vocabulary("byte").row(*([8] * size for size in sizes), max_length=8)
    assert len(row) == 8
    assert row.index(3) - 1 == kept[0]
    assert len(row) - row.index(3) - 2 == kept[1]


def test_rows_of_many_texts_are_each_of_its_own():
    """More than are encoded at a time."""
    texts = [(f"{number}",) for number in range(2_100)]
    vocabulary = Vocabulary("byte")
    rows, lengths = vocabulary.rows(texts, 16)
    assert rows.shape == (2_100, 16)
    shown = [vocabulary.decode(x[:n]) for x, n in zip(rows, lengths, strict=True)]
    assert shown == [f"[CLS] {text} [SEP]" for (text,) in texts]


def test_encode_takes_the_name_of_a_special_token_as_text(tmp_path):
    subwords.train(["a [SEP] b"] * 9, 300, tmp_path / "tokenizer.json")
    for name in ("byte", str(tmp_path / "tokenizer.json")):
        vocabulary = Vocabulary(name)
        (ids,) = vocabulary.encode(["a [SEP] b"])
        assert not set(ids) & set(vocabulary.special)
        assert vocabulary.decode(np.array(ids)) == "a [SEP] b"


LINES = [f'{i},"Hello, ""you"" {i}",{("ham", "spam")[i % 3 == 0]}' for i in range(90)]
TRAIN = "\n".join(["id,text,label", *LINES]).encode()
TSV = b'label\ttext\nspam\tHe said "no\nham\tyes, \n'


def labelled(folder, **options):
    options = {"labels": "ham,spam", "max_length": 32} | options
    return get_task("labelled_texts", source_dir=str(folder), **options)


def test_labelled_texts_draws_what_has_no_file(tmp_path):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"never read"})
    task = labelled(tmp_path)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [73, 8, 9]
    found = dict(pair for split in splits for pair in texts_of(task, split))
    assert found == {f'Hello, "you" {i}': int(i % 3 == 0) for i in range(90)}
    write(tmp_path, {"train.csv": TRAIN + b"\n91,Hello, you,ham"})
    with pytest.raises(DataError, match=r"a line of .*train\.csv has too many columns"):
        labelled(tmp_path).load("train", tmp_path / "data")
    with pytest.raises(DataError, match=r"source_dir .* must hold train.csv"):
        labelled(tmp_path / "other").load("train", tmp_path)


@pytest.mark.parametrize("tokenizer", [None, "byte"])
def test_labelled_texts_takes_files_of_validation_and_test(tmp_path, tokenizer):
    write(tmp_path, {"train.csv": TRAIN, "validation.tsv": TSV, "test.tsv": TSV})
    with pytest.raises(DataError, match="no example of validation is left"):
        load_all(labelled(tmp_path), tmp_path / "data")
    write(tmp_path, {"validation.tsv": TSV.replace(b"no", b"maybe") + b"ham\ta\tb\n"})
    task = labelled(tmp_path, tokenizer=tokenizer)
    train, validation, test = load_all(task, tmp_path / "data")
    assert [x.num_examples for x in (train, validation, test)] == [90, 1, 2]
    shown = 'He said "no' if tokenizer is None else '[CLS] He said "no [SEP]'
    assert texts_of(task, test)[0] == (shown, 1)
    assert test.labels.tolist() == [1, 0]
    assert test.inputs.dtype == (np.uint8 if tokenizer is None else np.uint16)


def test_labelled_texts_says_which_tables_it_does_not_read(tmp_path, capsys):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"", "._train.csv": b"\0\5\x16"})
    labelled(tmp_path).load("train", tmp_path / "data")
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/notes.csv is not read: it is named for no split"
    ]
    folder = labelled(tmp_path).folder()
    write(tmp_path, {".DS_Store": b"", "._notes.csv": b""})  # what macOS adds
    assert labelled(tmp_path).folder() == folder


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.csv", "val.csv"], "val.csv is not read: name it validation.csv, or"),
        (["train.tsv", "valid.csv"], "valid.csv is not read: name it validation.csv"),
        (["train.csv", "dev.tsv"], "dev.tsv is not read: name it validation.tsv, or"),
        (["train.csv", "Test.csv"], "Test.csv is not read: name it test.csv, or"),
        (["train.csv", "train.tsv"], "train.csv and .*/train.tsv are one split: rem"),
        (["training.csv"], r"source_dir \(.*\) must hold train.csv or train.tsv"),
    ],
)
def test_labelled_texts_ignores_no_split_without_a_word(tmp_path, names, message):
    write(tmp_path, dict.fromkeys(names, b"text,label\nfine,ham\n"))
    with pytest.raises(DataError, match=message):
        labelled(tmp_path).load("train", tmp_path / "data")


def test_encode_reads_a_text_as_a_table_is_read(tmp_path):
    write(
        tmp_path,
        {"train.csv": TRAIN, "test.csv": 'text,label\n"\xa0 fine\r\n",ham'.encode()},
    )
    for tokenizer in (None, "byte"):
        task = labelled(tmp_path, tokenizer=tokenizer)
        test = task.load("test", tmp_path / "data")
        for asked in ("fine", " fine\n", "\xa0 fine\r\n"):
            inputs, lengths = task.encode([asked])
            np.testing.assert_array_equal(inputs, test.inputs)
            np.testing.assert_array_equal(lengths, test.lengths)
    task = get_task("glue", subset="qqp")
    asked = task.encode([(" How?\n", "\tWhy?"), ("a", "b ")])
    for found, read in zip(
        asked, task.encode([("How?", "Why?"), ("a", "b")]), strict=True
    ):
        np.testing.assert_array_equal(found, read)


def test_the_recipe_for_official_columns_writes_what_is_read(tmp_path, monkeypatch):
    """DATA.md's, on texts with line ends; the library that downloads is not there."""
    texts = ["one\rtwo", "a\r\n\tb", 'He said "no', "plain  text", "end\n"]
    columns = {
        "validation": {"sentence": texts, "label": [0, 1, 0, 1, 1]},
        "train": {"sentence": [f"one {i}" for i in range(40)], "label": [0, 1] * 20},
    }
    rows = {
        split: types.SimpleNamespace(
            to_pandas=partial(pandas.DataFrame, columns[split])
        )
        for split in columns
    }
    library = types.SimpleNamespace(load_dataset=lambda *_, split: rows[split])
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.chdir(tmp_path)
    (recipe,) = re.findall(
        r"```python\n(import csv, datasets\n.*?)```", DATA, re.DOTALL
    )
    (tmp_path / "SST-2").mkdir()
    exec(recipe, {})
    task = get_task("glue", source_dir=str(tmp_path), max_length=64)
    test = task.load("test", tmp_path / "data")
    found = [(task.decode(x[1 : n - 1]), y) for x, n, y in rows_of(test)]
    assert found == [
        ("one two", 0),
        ("a b", 1),
        ('He said "no', 0),
        ("plain  text", 1),
        ("end", 1),
    ]


def rows_of(split):
    return zip(split.inputs, split.lengths, split.labels, strict=True)
