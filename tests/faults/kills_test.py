"""Runs killed again and again, from their first moment to their last: the same bits.

A life is one run in a new folder, data and all. Each of its processes is killed a
random while after it has come to a certain point; the last one runs to the end.
"""

import collections
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.commands import Commands
from tests.faults.conftest import numbers

FEW = ("preparing", "saving", "finishing")
MANY = ("preparing", "training", "saving", "training", "saving", "finishing")
MAX_DELAY = 0.3  # seconds between that point and the kill
STATUS: dict[int, set[int]] = {
    signal.SIGKILL: {-signal.SIGKILL},
    # Saved; or not yet begun.
    signal.SIGTERM: {128 + signal.SIGTERM, -signal.SIGTERM},
    signal.SIGUSR2: {128 + signal.SIGUSR2, -signal.SIGUSR2},
}


class Life:
    """One run in a folder of its own, and how far its files say it is."""

    def __init__(self, commands: Commands, folder: Path):
        self.commands = Commands(folder, commands.programs)
        folder.mkdir()
        self.workdir = folder / "run"

    def _size(self) -> int:
        path = self.workdir / "metrics.jsonl"
        return path.stat().st_size if path.exists() else 0

    def _reached(self, phase: str, size: int) -> bool:
        checkpoints = self.workdir / "checkpoints"
        return {
            "preparing": lambda: any(self.commands.folder.glob("data/*/*/*")),
            "training": lambda: self._size() not in (0, size),
            "saving": lambda: any(checkpoints.glob("*.tmp")),
            "finishing": lambda: (checkpoints / "400.safetensors").exists(),
        }[phase]()

    def kill(self, phase: str, signum: int, delay: float) -> str:
        """One process, killed; the phase, or "ended" where it was faster."""
        size = self._size()
        args = self.commands.train_args(self.workdir)
        process = self.commands.start("train.py", *args)
        while process.poll() is None and not self._reached(phase, size):
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signum)
        out, err = process.communicate(timeout=300)
        assert "Traceback" not in err, err
        if process.returncode == 0:
            return "ended"
        assert process.returncode in STATUS[signum], (process.returncode, out, err)
        return phase


def live(
    commands: Commands, folder: Path, phases: Sequence[str], signum: int, seed: int
) -> list[str]:
    """Kills a run in these phases and lets it end; the phases that were hit."""
    rng = random.Random(seed)
    life = Life(commands, folder)
    hit = [life.kill(phase, signum, rng.uniform(0, MAX_DELAY)) for phase in phases]
    done = life.commands.train(life.workdir)
    assert done.returncode == 0, done.stderr
    left = {path.name for path in life.workdir.iterdir()}
    assert left <= {
        *("config.json", "metrics.jsonl", "result.json"),
        *("events", "checkpoints", "best", "lock"),
    }
    assert not [*(life.workdir / "checkpoints").iterdir()]
    assert len([*(life.workdir / "best").iterdir()]) == 1
    return hit


@pytest.mark.slow
def test_a_run_killed_in_all_its_phases_ends_with_the_same_bits(
    commands, expected, tmp_path
):
    hit = live(commands, tmp_path / "0", FEW, signal.SIGKILL, 0)
    assert numbers(tmp_path / "0" / "run") == expected
    assert hit.count("ended") <= 1  # else the kills came too late to test anything


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize(
    ("signum", "lives"),
    [(signal.SIGKILL, 9), (signal.SIGTERM, 5), (signal.SIGUSR2, 4)],
)
def test_many_lives(commands, expected, tmp_path, capsys, signum, lives):
    hit = collections.Counter[str]()
    for seed in range(1, lives + 1):
        folder = tmp_path / str(seed)
        hit.update(live(commands, folder, MANY, signum, seed))
        assert numbers(folder / "run") == expected
    with capsys.disabled():
        found = ", ".join(f"{count} {phase}" for phase, count in sorted(hit.items()))
        print(f"\n{signum.name}: {found}; {lives} of {lives} results exact")
    assert hit["ended"] <= lives
