"""The state of a sweep: runs done, running, failed, waiting, and the time left."""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from tqdm import tqdm

from nystromformer.experiments.sweep.grid import Point
from nystromformer.experiments.sweep.process import failure
from nystromformer.experiments.workdir import RESULT_FILE
from nystromformer.training.files import METRICS_FILE

SECONDS_BETWEEN_LINES = 60.0
MOST_NAMES = 4  # of running points in a line


def state(workdir: Path) -> str:
    """The state of a point's folder: "done", "failed", or else "waiting"."""
    if (workdir / RESULT_FILE).exists():
        return "done"
    return "waiting" if failure(workdir) is None else "failed"


def all_done(workdirs: Sequence[Path]) -> bool:
    """Whether all runs are done; prints the failures and what to do next."""
    states = [state(workdir) for workdir in workdirs]
    for workdir, found in zip(workdirs, states, strict=True):
        if found == "failed":
            print(f"{workdir} failed: {failure(workdir)}")
    if "failed" in states:
        print("failed runs are skipped unless you pass --retry")
    if "waiting" in states:
        print("run the same command again to continue")
    return {*states} <= {"done"}


def fraction_done(workdir: Path, num_steps: int) -> float:
    """The share of a run that is trained, in [0, 1], from its last metrics line."""
    if (workdir / RESULT_FILE).exists():
        return 1.0
    try:
        with open(workdir / METRICS_FILE, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2048))
            lines = file.read().split(b"\n")[:-1]  # what follows is half-written
        return min(1.0, json.loads(lines[-1])["step"] / num_steps)
    except (OSError, IndexError, ValueError, KeyError, TypeError):
        return 0.0


class Status:
    """A status line, updated on a terminal and repeated in a log file."""

    def __init__(self, points: Sequence[Point], folder: Path):
        self.points, self.folder = points, folder
        self.bar = tqdm(bar_format="{desc}", disable=None)
        self.started = time.monotonic()
        self.trained_before, _ = self._tokens()
        self.shown, self.shown_at = "", 0.0

    def show(self, running: Collection[str]) -> None:
        """Shows the state, with points of these names running."""
        states = {point.name: state(self.folder / point.name) for point in self.points}
        now = [name for name in running if states.get(name) == "waiting"]
        counts = Counter({**states, **dict.fromkeys(now, "running")}.values())
        kinds = ("done", "running", "failed", "waiting")
        line = ", ".join(f"{counts[kind]} {kind}" for kind in kinds)
        if now:
            more = ["…"] if len(now) > MOST_NAMES else []
            line += f"; now {', '.join([*now[:MOST_NAMES], *more])}"
        text = line + self._time_left()
        self.bar.set_description_str(text)
        late = time.monotonic() - self.shown_at >= SECONDS_BETWEEN_LINES
        if self.bar.disable and (line != self.shown or late):
            self.say(text)
            self.shown, self.shown_at = line, time.monotonic()

    def say(self, line: str) -> None:
        """Prints a separate line."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def _tokens(self) -> tuple[float, int]:
        """Tokens trained so far, and in all, of the points that have not failed."""
        trained, wanted = 0.0, 0
        for point in self.points:
            workdir, steps = self.folder / point.name, point.config.train.num_steps
            if state(workdir) != "failed":
                trained += point.tokens * fraction_done(workdir, steps)
                wanted += point.tokens
        return trained, wanted

    def _time_left(self) -> str:
        """The time left at the speed so far; empty before there is one."""
        trained, wanted = self._tokens()
        since = trained - self.trained_before
        if since <= 0 or trained >= wanted:
            return ""
        seconds = (time.monotonic() - self.started) * (wanted - trained) / since
        minutes = math.ceil(seconds / 60)
        return f", about {minutes // 60} h {minutes % 60:02} min left"
