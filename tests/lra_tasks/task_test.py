"""The table of tasks, what its door turns away, and a task of a user's own."""

import runpy
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest

from lra_tasks import TASKS, subwords
from lra_tasks.errors import DataError
from lra_tasks.subwords import Vocabulary
from lra_tasks.task import default_options, get_task, register_task
from lra_tasks.text import Text
from tests.commands import ROOT
from tests.lra_tasks.splits import hashes, load_all

# A legal value beside the default for each option that makes other data. A test adds
# the tokenizer, which is a file.
OTHER_VALUES = {
    "colour": "rgb",
    "difficulty": "easy",
    "documents": "blank_lines",
    "easier_share": 0.5,
    "label_column": "class",
    "labels": "ham,spam",
    "max_args": 5,
    "max_depth": 5,
    "max_length": 1500,
    "max_tokens": 1000,
    "min_tokens": 400,
    "num_bytes": 9,
    "num_distractors": 5,
    "num_examples": 100,
    "num_keys": 99,
    "num_pairs": 5,
    "num_queries": 5,
    "num_test": 7,
    "num_train": 7,
    "num_validation": 7,
    "num_values": 5,
    "pattern": "*.md",
    "resolution": 64,
    "seed": 1,
    "size": 16,
    "subset": "mrpc",
    "text_column": "words",
    "vocab_size": 300,
}
# The tests of the tasks that read a folder look at source_dir.
OPTIONS_OF_OTHER_TESTS = {"source_dir"}
OPTIONS_WITHOUT_EFFECT = {"num_workers"}
PICTURES = {"image", "pathfinder", "pathx", "pictures"}
# Their own tests bring the files that they read. All other tasks draw their data.
TASKS_OF_FILES = {
    "corpus",
    "glue",
    "image",
    "labelled_texts",
    "pictures",
    "retrieval",
    "text",
}
# By those of these options that a task has.
FEW_EXAMPLES = {
    "num_examples": 20,
    "num_test": 10,
    "num_train": 40,
    "num_validation": 10,
}
# A picture of 128 × 128 pixels takes a third of a second to draw.
SMALL_EXAMPLES = {"pathx": {"resolution": 32, "max_length": 32**2}}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("listop", {}, "unknown task 'listop': one of listops"),
        ("listops", {"sead": 1}, "no option sead: its options are .*max_length"),
        ("listops", {"num_train": 1.5}, "num_train must be int, got 1.5"),
        ("listops", {"source_dir": 3}, r"source_dir must be str \| None, got 3"),
        ("listops", {"source_dir": "gs://b"}, "gs://b is not a local or mounted"),
        ("listops", {"source_dir": ""}, "source_dir is empty: name a folder, or"),
        ("listops", {"num_train": True}, "num_train must be int, got True"),
        ("text", {"num_bytes": False}, r"num_bytes must be int \| None, got False"),
        ("listops", {"seed": -1}, r"seed must be 0 to 2\*\*64 - 1, not -1"),
        ("pathfinder", {"seed": 2**64}, r"seed must be 0 to 2\*\*64 - 1, not 184467"),
        ("image", {"max_length": 512}, "max_length must be 1024, all pixels"),
        ("text", {"max_length": 0}, "max_length must be at least 1"),
        ("text", {"max_length": 7, "tokenizer": "byte"}, "must be at least 8"),
        ("text", {"tokenizer": "byte", "num_bytes": 9}, "num_bytes is for bytes"),
        ("text", {"num_bytes": 0}, "num_bytes must be at least 1, not 0"),
        ("corpus", {"vocab_size": 200}, "vocab_size must be 261 to 65536, not 200"),
        ("pathfinder", {"resolution": 48}, r"one of \(32, 64, 128\), not 48"),
        ("pathfinder", {"resolution": 64}, "must be 4,096, all pixels of r"),
        ("pathfinder", {"difficulty": "harder"}, "must be one of easy, interm"),
        ("labelled_texts", {"labels": "ham"}, "as in .*'ham,spam'; there is 'ham'"),
        ("listops", {"max_depth": 1}, "max_depth must be at least 2"),
        ("listops", {"max_length": 64}, "min_tokens must be 4 .* to 64"),
    ],
)
def test_what_is_turned_away(name, options, message):
    with pytest.raises(DataError, match=message):
        get_task(name, **options)


def test_a_task_is_imported_when_it_is_named():
    """The pictures and texts of other tasks take a second to import."""
    program = (
        "import sys\n"
        "from lra_tasks.task import get_task\n"
        "get_task('listops')\n"
        "names = ('pathfinder', 'glue', 'text', 'image', 'corpus', 'recall')\n"
        "print([name for name in names if f'lra_tasks.{name}' in sys.modules])\n"
        "print([name for name in ('scipy', 'PIL', 'jax') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_a_number_of_numpy_is_an_option(tmp_path):
    task = get_task("listops", seed=np.int64(3))
    assert task.folder(tmp_path) == get_task("listops", seed=3).folder(tmp_path)


def test_a_source_dir_is_one_folder_however_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    names = (None, "real", "./real/", str(tmp_path / "real"), "link")
    tasks = [get_task("listops", source_dir=name) for name in names]
    assert len({task.folder(tmp_path) for task in tasks}) == 2


@pytest.mark.parametrize("name", TASKS)
def test_folder_is_another_for_each_option_that_makes_other_data(name, tmp_path):
    tokenizer_file = tmp_path / "tokenizer.json"
    subwords.train(["a text"], 300, tokenizer_file)
    other_values = {**OTHER_VALUES, "tokenizer": str(tokenizer_file)}
    task = get_task(name)
    options = {field.name for field in fields(task)}
    for option in options - OPTIONS_OF_OTHER_TESTS - OPTIONS_WITHOUT_EFFECT:
        change = {option: other_values[option]}
        if option == "resolution":
            change["max_length"] = 64**2
        elif option in ("size", "colour"):
            change["max_length"] = 0
        elif option == "max_length" and name in PICTURES:
            continue  # It follows from the resolution.
        assert replace(task, **change).folder() != task.folder(), change


@pytest.mark.parametrize("name", sorted(TASKS.keys() - TASKS_OF_FILES))
def test_a_task_that_draws_its_data_draws_the_same_again(name, tmp_path):
    """A token id or a label that does not fit is refused by `load`."""
    options = {field.name for field in fields(get_task(name))}
    few_examples = {key: FEW_EXAMPLES[key] for key in FEW_EXAMPLES.keys() & options}
    task = get_task(name, **few_examples, **SMALL_EXAMPLES.get(name, {}))
    train, validation, test = load_all(task, tmp_path / "first")
    assert min(train.num_examples, validation.num_examples, test.num_examples) > 0
    assert all(0 <= floor <= 1 for floor in task.floors(train, test).values())
    assert hashes(task, tmp_path / "again") == hashes(task, tmp_path / "first")


def test_folder_is_that_of_a_tokenizers_content_wherever_it_lies(tmp_path):
    folders = []
    for name, text in (("a", "one text"), ("b", "one text"), ("c", "other words")):
        file = tmp_path / f"{name}.json"
        subwords.train([text], 300, file)
        folders.append(get_task("text", tokenizer=str(file)).folder())
    assert folders[0] == folders[1] != folders[2]


def test_folder_does_not_depend_on_the_order_in_which_files_are_found(
    tmp_path, monkeypatch
):
    files = [tmp_path / f"basic_{name}.tsv" for name in ("train", "val", "test")]
    for file in files:
        file.write_text(file.name)
    folders = set()
    for found_files in (files, files[::-1]):
        monkeypatch.setattr(Path, "glob", lambda *_, found=found_files: iter(found))
        folders.add(get_task("listops", source_dir=str(tmp_path)).folder())
    assert len(folders) == 1


def test_folder_does_not_depend_on_the_number_of_workers():
    task = get_task("pathfinder")
    assert replace(task, num_workers=3).folder() == task.folder()


@pytest.mark.parametrize(
    ("name", "texts", "decoded_texts"),
    [
        ("listops", ["[MAX 3 4 ]", "[SM 3 [MIN 0 9 ] ]"], None),
        ("text", ["naïve", "日本<br />"], None),
        ("retrieval", ["one paper", "another"], None),
        ("glue", ["fine film", "one"], ["[CLS] fine film [SEP]", "[CLS] one [SEP]"]),
    ],
)
def test_texts_become_inputs_and_come_back(name, texts, decoded_texts):
    task = get_task(name)
    inputs, lengths = task.encode(texts)
    assert inputs.shape == (2, task.max_length)
    for i, text in enumerate(decoded_texts or texts):
        assert task.decode(inputs[i, : lengths[i]]) == text


def test_encode_refuses_a_task_without_texts():
    with pytest.raises(DataError, match=r"image: .* text: in Python give their ids"):
        get_task("image").encode(["a fine film"])


def test_a_bucket_is_turned_away():
    with pytest.raises(DataError, match="gs://b/data is not a local or mounted folder"):
        get_task("listops").load("test", "gs://b/data")


def test_the_vocabulary_of_a_run_in_a_bucket_is_read_there(monkeypatch):
    """Its file is opened in the bucket, which is out of reach here, and copied."""
    vocabulary = Vocabulary("byte")
    monkeypatch.setattr("lra_tasks.task.open_vocabulary", lambda name: vocabulary)
    file = "gs://bucket/run/tokenizer.json"
    for name in ("text", "glue", "corpus"):
        task = get_task(name, tokenizer=file)
        assert str(task.vocabulary_file()) == file


def test_an_unknown_split_is_turned_away_before_any_work(tmp_path):
    with pytest.raises(DataError, match="'val': one of train, validation, test"):
        get_task("listops").load("val", tmp_path)
    assert not list(tmp_path.iterdir())


class Twin(Text):
    """A task of a user's own; examples/custom.py has a whole one."""

    name = "twin"


@dataclass(frozen=True, kw_only=True)
class Sized(Text):
    sizes: tuple[int, ...] = (3, 4)


def test_default_options_are_as_a_config_of_json_has_them(monkeypatch):
    monkeypatch.setitem(TASKS, "sized", Sized)
    defaults = default_options("sized")
    assert defaults["task.sizes"] == [3, 4]
    assert defaults["task.max_length"] == 4_000
    assert default_options("no such task") == {}


def test_register_task_takes_its_own_task_again(monkeypatch):
    monkeypatch.setattr("lra_tasks.task.TASKS", dict(TASKS))
    register_task("twin", Twin)
    assert isinstance(get_task("twin", max_length=5), Twin)
    # A file that is imported again, under another name, registers an equal class.
    register_task("twin", type("Twin", (Twin,), {}))


def test_register_task_refuses_a_name_that_is_not_its_own():
    with pytest.raises(DataError, match=r"the name 'text' is taken by .*Text"):
        register_task("text", type("Mine", (Text,), {}))
    with pytest.raises(DataError, match="must have the attribute name = 'other'"):
        register_task("other", Twin)


def test_register_task_goes_by_the_file_of_a_class(tmp_path, monkeypatch):
    monkeypatch.setattr("lra_tasks.task.TASKS", dict(TASKS))
    tasks = []
    for name in ("first.py", "other.py"):
        path = tmp_path / name
        path.write_text(
            "from lra_tasks.text import Text\n"
            "class Mine(Text):\n"
            "    name = 'mine'\n"
            "    def make_splits(self, source):\n"
            "        return {}\n"
        )
        tasks.append(runpy.run_path(str(path))["Mine"])
    register_task("mine", tasks[0])
    with pytest.raises(DataError, match="the name 'mine' is taken"):
        register_task("mine", tasks[1])
