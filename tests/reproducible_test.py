"""The same seed gives the same bits, in whatever process, place and language."""

import subprocess
import sys

import pytest

from tests.commands import ROOT, Commands
from tests.small import numbers

SHORT = ("--config.train.num_steps=60", "--config.train.eval_every=20")
ELSEWHERE = [
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC"},
    {"PYTHONHASHSEED": "4242", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
]


@pytest.mark.slow
def test_train_gives_the_same_bits_in_any_locale_and_folder(tmp_path):
    found = []
    for number, environment in enumerate(ELSEWHERE):
        folder = tmp_path / f"folder {number} ö"
        folder.mkdir()
        # What the first process compiles, the second reads: no part of the property.
        ours = Commands(folder, tmp_path / "programs", environment)
        command = [sys.executable, ROOT / "scripts" / "train.py"]
        args = ours.train_args("run", *SHORT)
        done = subprocess.run([*command, *args], cwd=folder, env=ours.env)
        assert done.returncode == 0
        found.append(numbers(folder / "run"))
    assert found[0] == found[1]
    assert len(found[0]) == 1 + 6 + 3 + 1
