"""Where numbers come from: command, commit, device and versions."""

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys

import jax
import pytest

from nystromformer.experiments import provenance
from nystromformer.experiments.provenance import collect, commit, hide_folders
from tests.commands import ROOT


def test_collect_has_the_command_as_a_shell_takes_it(monkeypatch):
    argv = ["scripts/train.py", "--workdir=my runs/a", "--config.x='1'", "$HOME", "*"]
    monkeypatch.setattr(sys, "argv", argv)
    assert shlex.split(collect()["command"]) == ["python", *argv]


def test_collect_names_what_is_in_the_repository_from_its_root(monkeypatch):
    argv = [
        f"{ROOT}/scripts/train.py",
        f"--config={ROOT}/configs/a.py:b",
        "--workdir=a",
    ]
    monkeypatch.setattr(sys, "argv", argv)
    command = "python scripts/train.py --config=configs/a.py:b --workdir=a"
    assert collect()["command"] == command


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("--config=/home/me/mine.py:softmax,quick", "--config=mine.py:softmax,quick"),
        (
            "'--config.task.source_dir=/my data/texts/'",
            "--config.task.source_dir=texts",
        ),
        ("--workdir /home/me/run", "--workdir run"),
        ("--workdir=runs/mine", "--workdir=runs/mine"),
        ("--workdir=gs://bucket/run", "--workdir=gs://bucket/run"),
        (
            "--config.attention.by_layer=0=softmax",
            "--config.attention.by_layer=0=softmax",
        ),
    ],
)
def test_hide_folders_leaves_the_names_of_absolute_paths(word, expected):
    assert hide_folders(f"python a.py {word}") == f"python a.py {expected}"


def test_collect_has_the_versions_of_what_computes(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    versions = collect()["versions"]
    assert versions.pop("python") == platform.python_version()
    assert versions.pop("XLA_FLAGS") == "--xla_dump_to=here"
    assert versions == {x: importlib.metadata.version(x) for x in versions}
    assert {"jax", "jaxlib", "flax", "optax", "numpy"} < versions.keys()
    assert versions["jax"] == jax.__version__


def test_collect_has_the_device():
    assert collect()["device"].startswith(f"CPU {platform.machine()}, ")


def test_commit_is_the_head_and_says_whether_files_differ(monkeypatch):
    def git(*args: str) -> str:
        if shutil.which("git") is None:
            return ""
        command = ["git", "-C", str(ROOT), *args]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    head = git("rev-parse", "HEAD") + dirty or None
    assert commit() == head
    monkeypatch.setenv("GIT_TRACE", "1")  # Git then writes to stderr, too.
    assert commit() == head
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_commit_is_not_that_of_a_project_around_the_package(monkeypatch):
    """As around an environment that lies in another checkout."""
    monkeypatch.setattr(provenance, "ROOT", ROOT / "tests")
    assert commit() is None
