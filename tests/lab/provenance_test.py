"""What stands on top of every result."""

import subprocess

import jax
import numpy as np

from nystromformer.lab import provenance
from tests.lab.conftest import ROOT


def test_the_versions_are_those_that_run():
    found = provenance.versions()
    assert (found["jax"], found["numpy"]) == (jax.__version__, np.__version__)


def test_the_commit_is_the_head_and_says_whether_files_differ():
    def git(*args):
        done = subprocess.run(
            ["git", "-C", ROOT, *args], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    assert provenance.commit() == (git("rev-parse", "HEAD") + dirty or None)


def test_the_device_says_on_what():
    assert any(word in provenance.device() for word in ("CPU", "×"))
