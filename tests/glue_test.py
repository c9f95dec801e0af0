"""GLUE: tiny files in the official formats, and reviews on a run's sub-words."""

import numpy as np
import pytest

from lra_tasks import subwords
from lra_tasks.glue import SUBSETS
from lra_tasks.split import DataError
from lra_tasks.subwords import Vocabulary
from lra_tasks.task import get_task
from tests.archive_server import load_all, write

pytest.importorskip("tokenizers")

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
    "mnli_mm": "[CLS] A 7 [SEP] B 7 [SEP]",
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
def test_the_splits_and_what_is_in_them(tmp_path, capsys, name):
    write(tmp_path, official())
    task = get_task("glue", subset=name, source_dir=str(tmp_path), max_length=64)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [54, 6, 12]
    said = capsys.readouterr().err
    assert ("QQP/train.tsv: 1 malformed lines left out" in said) == (name == "qqp")
    assert ("1 examples left out of" in said) == (name == "qqp")
    assert task.num_classes == len(set(splits[0].labels))
    texts = {
        task.decode(row[:n]): label
        for split in splits
        for row, n, label in zip(split.inputs, split.lengths, split.labels, strict=True)
    }
    assert len(texts) == 72
    assert texts[SHOWN[name]] == 7 % task.num_classes
    tested = 200 if name == "mnli_mm" else 100
    assert str(tested) in task.decode(splits[2].inputs[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"has no SST-2/train\.tsv: get GLUE's data"),
        (b"sentence\n", "line 1: no column label"),
        (b"sentence\tlabel\n", "has no examples"),
        (b"sentence\tlabel\ngood\t2\n", "line 2: the label '2' is no 0, 1"),
        (b"sentence\tlabel\n" + b"good\n" * 9 + b"fine\t1", "9 lines are not of 2"),
        (b"sentence\tlabel\ncaf\xe9\t1\n", "is not UTF-8 text"),
    ],
)
def test_what_is_wrong_in_a_file(tmp_path, content, message):
    write(tmp_path, {"SST-2/dev.tsv": tsv("SST-2", 0, 9), "SST-2/train.tsv": content})
    with pytest.raises(DataError, match=message) as caught:
        get_task("glue", source_dir=str(tmp_path)).load("train", tmp_path / "data")
    assert "\n" not in str(caught.value)


def test_a_pair_is_cut_at_its_longer_text():
    vocabulary = Vocabulary("byte")
    for sizes, kept in (((9, 2), (3, 2)), ((2, 9), (2, 3)), ((9, 9), (3, 2))):
        row = vocabulary.row(*([8] * size for size in sizes), 8)
        assert len(row) == 8
        assert row.index(3) - 1 == kept[0]
        assert len(row) - row.index(3) - 2 == kept[1]


def test_the_name_of_a_special_token_in_a_text_is_text(tmp_path):
    subwords.train(["a [SEP] b"] * 9, 300, tmp_path / "tokenizer.json")
    for name in ("byte", str(tmp_path / "tokenizer.json")):
        vocabulary = Vocabulary(name)
        (ids,) = vocabulary.encode(["a [SEP] b"])
        assert not set(ids) & set(vocabulary.special)
        assert vocabulary.decode(np.array(ids)) == "a [SEP] b"


def test_reviews_on_the_sub_words_of_another_run(tmp_path):
    reviews = {
        f"aclImdb/{split}/{polarity}/{i}_{rating}.txt": f"{split} {i} film".encode()
        for split in ("train", "test")
        for polarity, rating in (("neg", 2), ("pos", 9))
        for i in range(20)
    }
    write(tmp_path, {k: v + k.encode() for k, v in reviews.items()})
    file = tmp_path / "tokenizer.json"
    subwords.train(["a film of a film"] * 9, 300, file)
    text = type(get_task("text"))
    tiny = type("Tiny", (text,), {"reviews_per_class": 20})
    task = tiny(max_length=64, tokenizer=str(file))
    train = task.load("train", tmp_path)
    assert (task.vocab_size, task.mask_token) == (Vocabulary(str(file)).vocab_size, 4)
    said = task.decode(train.inputs[0, : train.lengths[0]])
    assert said.startswith("[CLS] train")
    assert said.endswith(".txt [SEP]")
    assert train.inputs.dtype == np.uint16
    assert not {"tokenizer", "num_bytes"} & text().pinned_options().keys()  # as before
    with pytest.raises(DataError, match="num_bytes is for bytes"):
        tiny(tokenizer="byte", num_bytes=100)
    with pytest.raises(DataError, match="max_length must be at least 3"):
        tiny(max_length=2, tokenizer="byte")
