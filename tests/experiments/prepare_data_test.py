"""The command as a user runs it, on tiny inputs in the official formats."""

import functools
import re

import pytest
import tensorflow_datasets as tfds  # noqa: F401 - eval

from tests.commands import ROOT, refused

MINE = f"--load={ROOT}/examples/custom.py", "--task=words"
PAIRS = b"1.0\tA\tB\tfirst paper\tsecond paper\n0.0\tA\tC\tfirst paper\tthird\n"


@pytest.fixture
def run(commands):
    return functools.partial(commands.run, "prepare_data.py")


def write_pairs(folder):
    folder.mkdir(parents=True)
    for number, name in enumerate(("train", "eval", "test")):
        content = PAIRS.replace(b"paper", b"paper %d" % number)
        (folder / f"new_aan_pairs.{name}.tsv").write_bytes(content)


def test_it_says_what_came_of_it_and_again_the_same(run, tmp_path):
    write_pairs(tmp_path / "tsv_data")
    arguments = ("--task=retrieval", f"--data_dir={tmp_path}")
    first, again = (run(*arguments) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert (again.stdout, again.stderr) == (first.stdout, "")
    loads = re.search(r"tfds.builder_from_directory\(.*\)$", first.stdout, re.M)
    assert len(eval(loads[0])) == 2
    line = r" train +2 examples of 3 documents; sha256 [0-9a-f]{64}$"
    assert re.search(line, first.stdout, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task=txt"], "unknown task 'txt': one of listops, text, "),
        ([*MINE, f"--option=source_dir={ROOT}"], "has neither aclImdb nor"),
        (["--task=text", "--option=seed"], "--option=seed is not KEY=VALUE"),
        (["--task=text", "--option=seed=one"], "seed must be int, not 'one'"),
        (["--task=labelled_texts", "--option=labels=1,2"], "must hold train.csv"),
        (
            ["--task=labelled_texts", "--option=source_dir=None"],
            "source_dir (None) must hold train.csv",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(run, tmp_path, arguments, message):
    done = run(*arguments, f"--data_dir={tmp_path}")
    assert message in refused(done)
    assert done.stdout == ""


def test_all_are_tried_and_every_failure_is_a_line(run, tmp_path):
    """No network, no archive: what cannot be had does not keep the rest waiting."""
    write_pairs(tmp_path / "tsv_data")
    (tmp_path / "aclImdb").mkdir()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in ("listops", "pathfinder", "pathx"):  # drawing all takes minutes
        (tmp_path / f"lra_{name}").touch()
    done = run("--task=all", f"--data_dir={tmp_path}")
    assert done.returncode == 2
    assert done.stdout.startswith("retrieval: tfds.")
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    names = [line.split(": ")[1] for line in lines]
    assert names == ["listops", "text", "image", "pathfinder", "pathx"]
    assert not any(f"{name}: {name}" in done.stderr for name in names)
