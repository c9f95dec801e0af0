"""What has become of the runs of a sweep, and how a person is told."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nystromformer.experiments.sweep.points import Point
from nystromformer.experiments.workdir import is_locked
from nystromformer.run_files import (
    CONFIG_FILE,
    FAILURE_FILE,
    METRICS_FILE,
    complete_lines,
    parse_json,
    read_json,
    read_result,
)
from nystromformer.training.output import Bar

LOG_FILE = "log.txt"
# The states of `find_state` in words, in the order in which they are counted.
STATE_WORDS = {
    "done": "done",
    "failed": "failed",
    "running": "in progress elsewhere",
    "waiting": "to train",
}
SECONDS_PER_LINE = 60.0  # between lines of progress, where the output is no terminal


def find_state(workdir: Path) -> str:
    """Returns the state of a run: "done", "running", "failed" or "waiting".

    A run that another sweep has started is running, too.

    Raises:
      ConfigError: if its result is damaged.
    """
    if read_result(workdir) is not None:
        return "done"
    if is_locked(workdir):
        return "running"
    if (workdir / FAILURE_FILE).exists():
        return "failed"
    return "waiting"


def format_plan(
    points: Sequence[Point],
    folder: Path,
    retry: bool = False,
    groups: Sequence[Sequence[Point]] = (),
) -> str:
    """Returns lines that say what a sweep has to do, one for each run.

    Args:
      points: all points of the sweep.
      folder: the folder of the sweep.
      retry: whether failed runs are trained again.
      groups: those of the runs to train that one process trains together.
    """
    states = {point.name: find_state(folder / point.name) for point in points}
    reasons = {}
    for name, state in states.items():
        if state == "failed" and retry:
            states[name] = "waiting"
        elif state == "failed":
            reasons[name] = f": {(folder / name / FAILURE_FILE).read_text('utf-8')}"

    width = max(len(STATE_WORDS[state]) for state in states.values())
    runs = "run" if len(points) == 1 else "runs"
    lines = [f"{len(points)} {runs} in {folder}: {_count(states.values())}"]
    lines += [
        f"  {STATE_WORDS[state]:{width}}  {name}{reasons.get(name, '')}"
        for name, state in states.items()
    ]
    for group in groups:
        if len(group) > 1:
            lines.append(f"  together: {', '.join(point.name for point in group)}")
    return "\n".join(lines)


def format_outcome(points: Sequence[Point], folder: Path) -> str:
    """Returns how many runs of a sweep are done, and what the others are."""
    states = [find_state(folder / point.name) for point in points]
    others = _count(state for state in states if state != "done")
    outcome = f"{states.count('done')} of {len(states)} done"
    return f"{outcome}, {others}" if others else outcome


def _count(states: Iterable[str]) -> str:
    """Counts states, as in "3 done, 1 to train"."""
    counts = Counter(states)
    return ", ".join(
        f"{counts[state]} {words}"
        for state, words in STATE_WORDS.items()
        if counts[state]
    )


class SweepProgress:
    """A bar over the runs that a sweep trains, with the step of those that run.

    The time left is estimated from all steps so far.

    Args:
      points: all points of the sweep.
      waiting: those that it trains.
      folder: the folder of the sweep.
    """

    def __init__(self, points: Sequence[Point], waiting: Sequence[Point], folder: Path):
        self.folder = folder
        self.num_runs = len(points)
        states = [find_state(folder / point.name) for point in points]
        self.num_done = states.count("done")
        self.shares = {}  # name -> how much of its training is done
        for point in waiting:
            step, num_steps = read_step(folder / point.name)
            self.shares[point.name] = step / num_steps
        self.bar = Bar(
            done=sum(self.shares.values()),
            total=len(waiting),
            seconds_per_line=SECONDS_PER_LINE,
            bar_format="{desc} |{bar}| {elapsed}, {remaining} left{postfix}",
            leave=False,
        )

    def show(self, running: Sequence[str], at_once: bool = False) -> None:
        """Shows the step of the runs with these names, the first of them by name."""
        steps = []
        for name in running:
            step, num_steps = read_step(self.folder / name)
            self.shares[name] = step / num_steps
            at_step = f"at step {step:,} of {num_steps:,}" if step else "is starting"
            steps.append(f"{name} {at_step}")
        if len(steps) > 1:
            steps[1:] = [f"{len(steps) - 1} more"]
        self.bar.bar.set_description_str(
            f"{self.num_done} of {self.num_runs} done", refresh=False
        )
        self.bar.show(sum(self.shares.values()), " and ".join(steps), at_once)

    def end(self, name: str, state: str) -> None:
        """Counts a run that has ended, or that is left out."""
        self.shares[name] = 1.0
        if state == "done":
            self.num_done += 1

    def close(self) -> None:
        """Takes the bar away."""
        self.bar.close()


def read_step(workdir: Path) -> tuple[int, int]:
    """Returns the last step in the metrics of a run, and the number of its steps.

    Raises:
      ConfigError: if a file is damaged.
    """
    metrics_file = workdir / METRICS_FILE
    if not metrics_file.exists():
        return 0, 1
    rows = complete_lines(metrics_file)
    config = read_json(workdir / CONFIG_FILE)
    step = parse_json(rows[-1], metrics_file)["step"] if rows else 0
    return step, config["train"]["num_steps"]
