"""scripts/prepare_data.py as a user runs it, on tiny inputs in the official formats."""

import functools
import re

import pytest
import tensorflow_datasets as tfds  # noqa: F401 - the printed line needs it

from lra_tasks.task import get_task
from tests.commands import ROOT, refused

PAIRS = b"1.0\tA\tB\tfirst paper\tsecond paper\n0.0\tA\tC\tfirst paper\tthird\n"


@pytest.fixture
def prepare(commands):
    """Runs the command with these arguments."""
    return functools.partial(commands.run, "prepare_data.py")


def write_pairs(folder):
    folder.mkdir(parents=True)
    for number, name in enumerate(("train", "eval", "test")):
        content = PAIRS.replace(b"paper", b"paper %d" % number)
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(content)


def test_prepare_data_prints_how_to_load_and_again_the_same(prepare, tmp_path):
    write_pairs(tmp_path / "tsv_data")
    arguments = ("--task=retrieval", f"--data_dir={tmp_path}")
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr
    call = re.search(r"tfds.builder_from_directory\(.*\)$", done.stdout, re.M)
    assert len(eval(call[0])) == 2
    line = r" train +2 examples of 3 documents; sha256 [0-9a-f]{64}$"
    assert re.search(line, done.stdout, re.M)

    second = prepare(*arguments)
    assert second.stdout == done.stdout
    assert second.stderr == ""


def test_prepare_data_makes_what_a_config_reads(prepare, tmp_path):
    done = prepare(
        f"--config={ROOT}/configs/listops.py:quick",
        f"--config.task.data_dir={tmp_path}",
        "--config.task.num_train=30",
        "--config.task.num_validation=5",
        "--config.task.num_test=5",
    )
    assert done.returncode == 0, done.stderr

    task = get_task(
        "listops",
        max_length=48,
        min_tokens=24,
        max_tokens=48,
        max_depth=3,
        max_args=6,
        num_train=30,
        num_validation=5,
        num_test=5,
    )
    assert f'builder_from_directory("{task.folder(tmp_path)}")' in done.stdout
    assert task.load("train", tmp_path).content_hash in done.stdout


TEXT = f"--config={ROOT}/configs/text.py"
LABELLED = f"--config={ROOT}/configs/labelled_texts.py"
CUSTOM = f"{ROOT}/examples/custom.py"
BAD = [
    ([], "give either --task or --config"),
    (["--task=text", TEXT], "give either --task or --config"),
    (["--task=txt"], "unknown task 'txt': one of listops, text, "),
    ([TEXT, "--config.task.sed=1"], 'Did you mean "seed" instead of "sed"'),
    ([TEXT, "--config.task.seed=one"], "seed=one: must be an integer"),
    ([TEXT, f"--config.task.source_dir={ROOT}"], "has neither aclImdb nor"),
    (["--task=labelled_texts"], "source_dir must name the folder that has train.csv"),
    (
        [LABELLED, "--config.task.source_dir=None"],
        "source_dir must name the folder that has train.csv",
    ),
    # The task of the file is known. Its archive is missing.
    ([f"--load={CUSTOM}", "--task=words"], "words: "),
    # `encode` of that task has no use for these options of Text.
    ([f"--config={CUSTOM}", "--config.task.num_bytes=9"], "words: num_bytes and token"),
    ([f"--config={CUSTOM}", "--config.task.tokenizer=byte"], "tokenizer are for Text"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_prepare_data_rejects_bad_input(prepare, tmp_path, arguments, message):
    done = prepare(*arguments, f"--data_dir={tmp_path}")
    assert message in refused(done)
    assert done.stdout == ""


def test_prepare_data_tries_all_and_prints_a_line_for_every_failure(prepare, tmp_path):
    """A task without its archive does not keep the others from their data."""
    write_pairs(tmp_path / "tsv_data")
    (tmp_path / "aclImdb").mkdir()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    # Drawing all of these takes minutes. With a file for their folder they fail.
    for name in ("listops", "pathfinder", "pathx"):
        (tmp_path / f"lra_{name}").touch()
    done = prepare("--task=all", "--task=corpus", f"--data_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stdout.startswith("retrieval: tfds.")

    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    names = [line.split(": ")[1] for line in lines]
    assert names == ["listops", "text", "image", "pathfinder", "pathx", "corpus"]
    assert not any(f"{name}: {name}" in done.stderr for name in names)
