"""Points whose process is a line of Python: what an executor starts, in no time."""

import dataclasses
import sys
from pathlib import Path

import pytest

from configs import listops
from nystromformer.config import Config
from nystromformer.lab.sweep.grid import Point
from nystromformer.lab.sweep.status import Status

CONFIG = Config.from_mapping(listops.get_config("nystrom,quick").to_dict())
FINISH = "import os; open(os.path.join(workdir, 'result.json'), 'w').write('{}')"


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

    def stub(name: str, lines: str = FINISH) -> Stub:
        return Stub(name, (), CONFIG, lines)

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
        line.close()
