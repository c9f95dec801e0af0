"""The same seed gives the same bits, in whatever process, place and language."""

import subprocess
import sys

import pytest

from tests.commands import ROOT, Commands
from tests.small import numbers

ELSEWHERE = {"PYTHONHASHSEED": "4242", "LC_ALL": "C", "TZ": "Asia/Tokyo"}


@pytest.mark.slow
def test_train_is_the_same_in_any_locale_and_folder(commands, finished, tmp_path):
    folder = tmp_path / "folder ö"
    folder.mkdir()
    elsewhere = Commands(folder, commands.programs, ELSEWHERE)
    script = ROOT / "scripts" / "train.py"
    command = [sys.executable, script, *elsewhere.train_args("run")]
    assert subprocess.run(command, cwd=folder, env=elsewhere.env).returncode == 0
    workdir, _ = finished
    assert numbers(folder / "run") == numbers(workdir)
