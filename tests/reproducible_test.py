"""The same seed gives the same bits, in whatever process, place and language."""

from pathlib import Path

import pytest

from tests.commands import Commands
from tests.faults.conftest import numbers

SHORT = ("--config.train.num_steps=60", "--config.train.eval_every=20")
ELSEWHERE = [
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC"},
    {"PYTHONHASHSEED": "4242", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"},
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """What the first process compiles, the second reads: no part of the property."""
    return tmp_path_factory.mktemp("programs")


def run(folder: Path, programs: Path, environment: dict[str, str]) -> dict:
    folder.mkdir()
    done = Commands(folder, programs, environment).train(Path("run"), *SHORT)
    assert done.returncode == 0, done.stderr
    return numbers(folder / "run")


@pytest.mark.slow
def test_hash_seed_locale_and_folder_change_no_bit(tmp_path, programs):
    one, other = (
        run(tmp_path / f"folder {number} ö", programs, environment)
        for number, environment in enumerate(ELSEWHERE)
    )
    assert one == other
    assert len(one["result"]["params_sha256"]) == 64
    assert len(one["metrics"]) == 6 + 3 + 1
