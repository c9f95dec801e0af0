"""Points whose process is a line of Python: what an executor starts, in no time."""

import dataclasses
import sys
from pathlib import Path

import pytest

from nystromformer.experiments.sweep.grid import Point
from nystromformer.experiments.sweep.status import Status
from tests.small import make_config

FINISH = "import os; open(os.path.join(workdir, 'result.json'), 'w').write('{}')"
# Is stopped at its first start, when it saves; goes on at its second.
LONG = f"""
import os, signal, sys, time
def save(*_):
    open(workdir + "/saved", "w").close()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
open(workdir + "/started", "w").close()
if not os.path.exists(workdir + "/saved"):
    time.sleep(120)
{FINISH}
"""


@dataclasses.dataclass(frozen=True)
class Stub(Point):
    """A point that runs these lines, in which `workdir` is its folder."""

    lines: str = FINISH

    def command(self, folder: Path) -> list[str]:
        program = f"workdir = {str(folder / self.name)!r}\n{self.lines}"
        return [sys.executable, "-c", program]


@pytest.fixture
def stub():
    """Makes a point of this name that runs these lines."""

    def stub(name: str, lines: str = FINISH, source: str | None = None) -> Stub:
        return Stub(name, (), make_config("quick"), source, lines)

    return stub


@pytest.fixture
def status(tmp_path):
    """Makes the status line of points in this test's folder."""
    made = []

    def status(points) -> Status:
        made.append(Status(points, tmp_path))
        return made[-1]

    yield status
    for line in made:
        line.bar.close()
