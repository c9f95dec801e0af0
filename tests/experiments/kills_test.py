"""A run that is killed again and again ends with the bits of one that is not.

It begins in a new folder, with its data. Each of its processes is killed a random while
after it has come to a certain point, and the last one runs to the end.
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
# So many seconds are between that point and the kill at most.
MAX_DELAY = 0.3


def kill(commands, phase, signum, delay):
    """Starts a process and kills it; returns whether it was still running."""
    process = commands.start("train.py", *commands.train_args(commands.folder / "run"))
    while process.poll() is None and not PHASES[phase](commands.folder):
        time.sleep(0.001)
    time.sleep(delay)
    process.send_signal(signum)
    stdout, stderr = process.communicate(timeout=300)
    assert "Traceback" not in stderr, stderr
    # A run that has begun ends by itself, and a process before it by the signal.
    assert process.returncode in (0, 128 + signum, -signum), (stdout, stderr)
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_train_killed_in_every_phase_ends_with_the_same_bits(
    commands, finished, tmp_path, signum
):
    workdir = tmp_path / "run"
    killed_commands = Commands(tmp_path, commands.programs)
    rng = random.Random(0)
    num_killed = 0
    for phase in PHASES:
        delay = rng.uniform(0, MAX_DELAY)
        num_killed += kill(killed_commands, phase, signum, delay)
    # With fewer the kills would have come too late to test anything.
    assert num_killed >= len(PHASES) - 1

    done = killed_commands.train(workdir)
    assert done.returncode == 0, done.stderr
    # Checkpoints stay where the kill came after the result.
    names = {path.name for path in workdir.iterdir()}
    assert names - {"checkpoints"} == {
        "config.json",
        "metrics.jsonl",
        "result.json",
        "events",
        "best",
        "lock",
    }
    finished_workdir, _ = finished
    assert numbers(workdir) == numbers(finished_workdir)
