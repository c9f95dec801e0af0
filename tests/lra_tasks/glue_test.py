"""GLUE: tiny files in the official formats, and TFDS's."""

import re
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.glue import SUBSETS
from lra_tasks.task import get_task
from tests.commands import ROOT
from tests.lra_tasks.archive_server import write, write_tfds
from tests.lra_tasks.splits import hashes, load_all, texts_of

DATA = (ROOT / "DATA.md").read_text()

MNLI = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence1\tsentence2"


class Form(NamedTuple):
    """The header of a file, a line with its number i and its label, and the labels."""

    header: str
    line: str
    labels: Sequence[str]


FORMS = {
    "SST-2": Form("sentence\tlabel", "it 's \" {i} \t{label}", "01"),
    "MRPC": Form(
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        '{label}\t7\t{i}\tHe said "{i}\tShe said {i}"\r',
        "01",
    ),
    "QNLI": Form(
        "index\tquestion\tsentence\tlabel",
        "{i}\tWhen {i}?\tIn {i}.\t{label}",
        ("entailment", "not_entailment"),
    ),
    "QQP": Form(
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
        "{i}\t1\t2\tHow {i}?\tWhy {i}?\t{label}",
        "01",
    ),
    "MNLI": Form(
        f"{MNLI}\tlabel1\tgold_label",
        "{i}\t1\t2\tfiction\t( a )\tA {i}\tB {i}\tneutral\t{label}",
        ("entailment", "neutral", "contradiction"),
    ),
}
DECODED_EXAMPLE_7 = {
    "sst2": "[CLS] it 's \" 7 [SEP]",
    "mrpc": '[CLS] He said "7 [SEP] She said 7" [SEP]',
    "qnli": "[CLS] When 7? [SEP] In 7. [SEP]",
    "qqp": "[CLS] How 7? [SEP] Why 7? [SEP]",
    "mnli": "[CLS] A 7 [SEP] B 7 [SEP]",
}


def tsv(folder, start, count):
    """A file in a subset's official format; its examples are numbered from `start`."""
    form = FORMS[folder]
    lines = [form.header]
    for number in range(start, start + count):
        label = form.labels[number % len(form.labels)]
        lines.append(form.line.format(i=number, label=label))
    return "".join(f"{line}\n" for line in lines).encode()


def official_files():
    """All files as published, of 60 examples of train and 12 of dev.

    In QQP's train a line is broken, and another is in dev too.
    """
    files = {}
    for folder in FORMS:
        train = "msr_paraphrase_train.txt" if folder == "MRPC" else "train.tsv"
        files[f"{folder}/{train}"] = tsv(folder, start=0, count=60)
        files[f"{folder}/test.tsv"] = b"index\tsentence\n0\tnever read\n"
        files[f"{folder}/dev.tsv"] = tsv(folder, start=100, count=12)
        files[f"{folder}/dev_matched.tsv"] = tsv(folder, start=100, count=12)
        files[f"{folder}/dev_mismatched.tsv"] = tsv(folder, start=200, count=12)
    files["QQP/train.tsv"] += b"61\t1\t2\tbroken off\n"
    files["QQP/train.tsv"] += b"62\t1\t2\tHow 100?\tWhy 100?\t0\n"
    return files


@pytest.mark.parametrize("name", SUBSETS)
def test_make_splits_of_every_subset(tmp_path, name):
    write(tmp_path, official_files())
    task = get_task("glue", subset=name, source_dir=str(tmp_path), max_length=64)

    splits = load_all(task, tmp_path / "data")

    assert [split.num_examples for split in splits[:3]] == [54, 6, 12]
    assert task.num_classes == len(task.label_names)
    assert task.num_classes == len(set(splits[0].labels))
    label_of_text = {}
    for split in splits:
        label_of_text.update(texts_of(task, split))
    assert label_of_text[DECODED_EXAMPLE_7[name]] == 7 % task.num_classes
    assert "100" in task.decode(splits[2].inputs[0])


def test_mnli_alone_has_two_test_splits(tmp_path):
    write(tmp_path, official_files())
    task = get_task("glue", subset="mnli", source_dir=str(tmp_path), max_length=64)
    *_, mismatched = load_all(task, tmp_path / "data")
    assert "200" in task.decode(mismatched.inputs[0])
    split_names = {name: get_task("glue", subset=name).splits for name in SUBSETS}
    *_, name_of_fourth = split_names.pop("mnli")
    assert name_of_fourth == "test_mismatched"
    assert {len(names) for names in split_names.values()} == {3}

    # The data are made again if the file of either test split changes.
    folders = {task.folder()}
    for name in ("dev_matched", "dev_mismatched"):
        write(tmp_path, {f"MNLI/{name}.tsv": tsv("MNLI", start=300, count=13)})
        folders.add(replace(task).folder())
    assert len(folders) == 3


@pytest.mark.parametrize(("name", "is_left_out"), [("qqp", True), ("mrpc", False)])
def test_lines_that_are_broken_or_repeated_are_left_out(
    tmp_path, capsys, name, is_left_out
):
    write(tmp_path, official_files())
    task = get_task("glue", subset=name, source_dir=str(tmp_path), max_length=64)
    load_all(task, tmp_path / "data")
    stderr = capsys.readouterr().err
    broken = "QQP/train.tsv: 1 of 62 lines lack a column or have too many: left out"
    assert (broken in stderr) == is_left_out
    assert ("1 example left out of" in stderr) == is_left_out


class TfdsForm(NamedTuple):
    """The columns of texts in TFDS, with the number i, and the validation splits."""

    texts: dict[str, str]
    validation_splits: Sequence[str] = ("validation",)


# The texts are those of FORMS.
TFDS_FORMS = {
    "sst2": TfdsForm({"sentence": "it 's \" {i} "}),
    "mrpc": TfdsForm({"sentence1": 'He said "{i}', "sentence2": 'She said {i}"'}),
    "qnli": TfdsForm({"question": "When {i}?", "sentence": "In {i}."}),
    "qqp": TfdsForm({"question1": "How {i}?", "question2": "Why {i}?"}),
    "mnli": TfdsForm(
        {"premise": "A {i}", "hypothesis": "B {i}"},
        ("validation_matched", "validation_mismatched"),
    ),
}


def tfds_rows(name, start, count, num_classes):
    """The examples of the official files as TFDS has them, in an order of its own."""
    rows = []
    for number in reversed(range(start, start + count)):
        texts = {
            column: text.format(i=number)
            for column, text in TFDS_FORMS[name].texts.items()
        }
        rows.append({"idx": number, **texts, "label": number % num_classes})
    return rows


@pytest.mark.parametrize("name", TFDS_FORMS)
def test_tfds_gives_the_data_of_the_official_files(tmp_path, name):
    files = official_files()
    files["QQP/train.tsv"] = tsv("QQP", start=0, count=60)
    write(tmp_path / "tsv", files)
    official = get_task("glue", subset=name, source_dir=str(tmp_path / "tsv"))

    form = TFDS_FORMS[name]
    num_classes = official.num_classes
    rows = {"train": tfds_rows(name, 0, 60, num_classes)}
    for start, split in zip((100, 200), form.validation_splits, strict=False):
        rows[split] = tfds_rows(name, start, 12, num_classes)
    features = {
        "idx": np.int32,
        **{column: tfds.features.Text() for column in form.texts},
        "label": tfds.features.ClassLabel(num_classes=num_classes),
    }
    write_tfds(tmp_path / "tfds", f"glue/{name}", features, rows)
    from_tfds = get_task("glue", subset=name, source_dir=str(tmp_path / "tfds"))

    assert hashes(from_tfds, tmp_path) == hashes(official, tmp_path)


def test_mrpc_is_read_from_the_files_of_microsoft_as_from_those_of_glue(tmp_path):
    parts = {
        "train": tsv("MRPC", start=0, count=60),
        "test": tsv("MRPC", start=100, count=12),
    }
    names = {
        "glue": {"train": "train.tsv", "test": "dev.tsv"},
        "microsoft": {
            "train": "msr_paraphrase_train.txt",
            "test": "msr_paraphrase_test.txt",
        },
    }
    read = {}
    for publisher, file_names in names.items():
        folder = tmp_path / publisher
        write(folder, {f"MRPC/{file_names[part]}": parts[part] for part in parts})
        task = get_task("glue", subset="mrpc", source_dir=str(folder))
        read[publisher] = hashes(task, tmp_path / "data")
    assert read["glue"] == read["microsoft"]


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
    dev = tsv("SST-2", start=0, count=9)
    write(tmp_path, {"SST-2/dev.tsv": dev, "SST-2/train.tsv": content})
    task = get_task("glue", source_dir=str(tmp_path))
    with pytest.raises(DataError, match=message):
        task.load("train", tmp_path / "data")


def test_encode_strips_both_texts_of_a_pair():
    task = get_task("glue", subset="qqp")
    inputs, lengths = task.encode([(" How?\n", "\tWhy?"), ("a", "b ")])
    stripped_inputs, stripped_lengths = task.encode([("How?", "Why?"), ("a", "b")])
    np.testing.assert_array_equal(inputs, stripped_inputs)
    np.testing.assert_array_equal(lengths, stripped_lengths)


def test_the_recipe_for_official_columns_writes_what_is_read(tmp_path, monkeypatch):
    """The recipe is DATA.md's; the texts have line ends.

    A table stands in for the library that downloads, which is not installed.
    """
    texts = ["one\rtwo", "a\r\n\tb", 'He said "no', "plain  text", "end\n"]
    tables = {
        "validation": {"sentence": texts, "label": [0, 1, 0, 1, 1]},
        "train": {"sentence": [f"one {i}" for i in range(40)], "label": [0, 1] * 20},
    }

    def load_dataset(*_, split):
        make_frame = partial(pandas.DataFrame, tables[split])
        return types.SimpleNamespace(to_pandas=make_frame)

    library = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SST-2").mkdir()
    code_block = r"```python\n(import csv, datasets\n.*?)```"
    (recipe,) = re.findall(code_block, DATA, re.DOTALL)

    exec(recipe, {})

    task = get_task("glue", source_dir=str(tmp_path), max_length=64)
    test = task.load("test", tmp_path / "data")
    assert texts_of(task, test) == [
        ("[CLS] one two [SEP]", 0),
        ("[CLS] a b [SEP]", 1),
        ('[CLS] He said "no [SEP]', 0),
        ("[CLS] plain  text [SEP]", 1),
        ("[CLS] end [SEP]", 1),
    ]
