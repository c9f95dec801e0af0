"""Vocabularies: how they are learnt, rows of one text or two, texts as token ids."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from lra_tasks import subwords
from lra_tasks.errors import DataError
from lra_tasks.subwords import SPECIAL, Vocabulary

# The ids of the tokens that begin a row and that end each of its texts.
CLS = 2
SEP = 3


@pytest.mark.parametrize(
    ("first_length", "second_length", "first_cut", "second_cut"),
    [
        (9, 2, 3, 2),
        (2, 9, 2, 3),
        (9, 9, 3, 2),
    ],
)
def test_row_cuts_a_pair_at_its_longer_text(
    first_length, second_length, first_cut, second_cut
):
    first = list(range(10, 10 + first_length))
    second = list(range(100, 100 + second_length))
    row = Vocabulary("byte").row(first, second, max_length=8)
    assert row == [CLS, *first[:first_cut], SEP, *second[:second_cut], SEP]
    assert len(row) == 8


def test_row_keeps_the_beginning_of_a_single_text():
    row = Vocabulary("byte").row(list(range(10, 30)), max_length=8)
    assert row == [CLS, 10, 11, 12, 13, 14, 15, SEP]


def test_rows_of_many_texts_are_each_of_its_own():
    """There are more texts than are encoded at a time."""
    vocabulary = Vocabulary("byte")
    rows, lengths = vocabulary.rows([(f"{number}",) for number in range(2_100)], 16)
    assert rows.shape == (2_100, 16)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        assert vocabulary.decode(row[:length]) == f"[CLS] {number} [SEP]"


# Many pairs of letters are equally frequent, so that ties decide what is learnt.
TRAIN = """
import itertools, pathlib, sys
from lra_tasks import subwords
texts = ["".join(letters) for letters in itertools.permutations("abcdef", 4)]
subwords.train(texts * 5, 320, pathlib.Path(sys.argv[1]))
"""


def test_train_writes_the_same_file_in_every_process(tmp_path):
    """A resumed run learns its vocabulary again where its data are gone."""
    contents = []
    for num_threads in ("1", "4"):
        path = tmp_path / f"{num_threads}.json"
        env = {**os.environ, "RAYON_NUM_THREADS": num_threads}
        subprocess.run([sys.executable, "-c", TRAIN, str(path)], env=env, check=True)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_encode_takes_the_name_of_a_special_token_as_text(tmp_path):
    subwords.train(["a [SEP] b"] * 9, 300, tmp_path / "tokenizer.json")
    for name in ("byte", str(tmp_path / "tokenizer.json")):
        vocabulary = Vocabulary(name)
        (ids,) = vocabulary.encode(["a [SEP] b"])
        assert not set(ids) & set(vocabulary.special)
        assert vocabulary.decode(np.array(ids)) == "a [SEP] b"


def test_a_tokenizer_of_others_gives_the_ids_of_the_text_alone(tmp_path):
    """Its file may cut, fill and frame a text, and leave out a number."""
    ids = {name: i for i, name in enumerate([*SPECIAL, "one"])}
    ids["two"] = 9
    tokenizer: Any = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))

    vocabulary = Vocabulary(str(tmp_path / "tokenizer.json"))

    texts = ["one two one two one", "two"]
    assert vocabulary.encode(texts) == [[5, 9, 5, 9, 5], [9]]
    assert vocabulary.vocab_size == 10


def test_a_vocabulary_that_uint16_cannot_number_is_refused(tmp_path):
    names = [*SPECIAL, *(f"w{i}" for i in range(2**16))]
    ids = {name: i for i, name in enumerate(names)}
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(ids, unk_token="[UNK]")).save(str(path))
    with pytest.raises(DataError, match="json has more than 65,536 tokens"):
        Vocabulary(str(path))
