"""Runs killed again and again, from their first moment to their last: the same bits.

A life is one run in a new folder, data and all. Each of its processes is killed a
random while after it has come to a certain point; the last one runs to the end.
"""

import collections
import random
import signal
import time

import pytest

from nystromformer.training.checkpoint import steps_in
from tests.commands import Commands
from tests.small import numbers, result_of

PHASES = {
    "preparing": lambda folder: any(folder.glob("data/*/*/*")),
    "training": lambda folder: (folder / "run" / "metrics.jsonl").exists(),
    "saving": lambda folder: any(folder.glob("run/checkpoints/*.tmp")),
    "finishing": lambda folder: any(folder.glob("run/checkpoints/400.*")),
}
MAX_DELAY = 0.3  # seconds between that point and the kill


def kill(commands, phase, signum, delay):
    """One process, killed; the phase, or "ended" where it was faster."""
    args = commands.train_args(commands.folder / "run")
    process = commands.start("train.py", *args)
    while process.poll() is None and not PHASES[phase](commands.folder):
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signum)
    out, err = process.communicate(timeout=300)
    assert "Traceback" not in err, err
    # Of itself, or where it has not yet begun, of the signal.
    assert process.returncode in (0, 128 + signum, -signum), (out, err)
    return phase if process.returncode else "ended"


def live(commands, seed, signum):
    """Kills a run in all phases and lets it end; the phases that were hit."""
    rng = random.Random(seed)
    hit = [kill(commands, x, signum, rng.uniform(0, MAX_DELAY)) for x in PHASES]
    run = commands.folder / "run"
    done = commands.train(run)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "metrics.jsonl", "result.json"),
        *("events", "checkpoints", "best", "lock"),
    }
    # One that was killed at its very end may leave older files, too.
    assert steps_in(run / "best")[0] == result_of(run)["best_step"]
    return hit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "lives"),
    [
        (signal.SIGKILL, 1),
        pytest.param(signal.SIGKILL, 9, marks=pytest.mark.faults),
        pytest.param(signal.SIGTERM, 5, marks=pytest.mark.faults),
        pytest.param(signal.SIGUSR2, 4, marks=pytest.mark.faults),
    ],
)
def test_a_run_killed_in_all_its_phases_ends_with_the_same_bits(
    commands, finished, tmp_path, signum, lives
):
    hit = collections.Counter()
    for seed in range(lives):
        folder = tmp_path / str(seed)
        folder.mkdir()
        hit.update(live(Commands(folder, commands.programs), seed, signum))
        assert numbers(folder / "run") == numbers(finished[0])
    assert hit["ended"] <= lives  # else the kills came too late to test anything
