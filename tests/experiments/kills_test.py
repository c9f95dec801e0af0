"""Runs killed again and again, from their first moment to their last: the same bits.

A life is one run in a new folder, data and all. Each of its processes is killed a
random while after it has come to a certain point; the last one runs to the end.
"""

import random
import signal
import time

import pytest

from tests.commands import Commands
from tests.small import numbers

PHASES = {
    "preparing": lambda folder: any(folder.glob("data/*/*/*")),
    "training": lambda folder: (folder / "run" / "metrics.jsonl").exists(),
    "saving": lambda folder: any(folder.glob("run/checkpoints/*tmp*")),
    "finishing": lambda folder: any(folder.glob("run/checkpoints/200*")),
}
MAX_DELAY = 0.3  # seconds between that point and the kill


def kill(commands, phase, signum, delay):
    """One process, killed; the phase, or "ended" where it was faster."""
    process = commands.start("train.py", *commands.train_args(commands.folder / "run"))
    while process.poll() is None and not PHASES[phase](commands.folder):
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signum)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    # Of itself, or where it has not yet begun, of the signal.
    assert process.returncode in (0, 128 + signum, -signum), (out, err)
    return phase if process.returncode else "ended"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_train_killed_in_every_phase_ends_with_the_same_bits(
    commands, finished, tmp_path, signum
):
    ours, rng = Commands(tmp_path, commands.programs), random.Random(0)
    hit = [kill(ours, x, signum, rng.uniform(0, MAX_DELAY)) for x in PHASES]
    assert hit.count("ended") <= 1  # else the kills came too late to test anything
    done = ours.train(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    # Checkpoints stay where the kill came after the result.
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"checkpoints"} == {
        *("config.json", "metrics.jsonl", "result.json", "events", "best", "lock")
    }
    assert numbers(tmp_path / "run") == numbers(finished[0])
