"""The tables of a report, as text: accuracies, settings and costs, and single runs."""

import csv
import io
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nystromformer.lab.report.points import (
    Point,
    by_attention,
    floor_reached,
    mean_and_sd,
)
from nystromformer.lab.report.presets import command, nearest_preset
from nystromformer.lab.report.published import SOURCES, TASKS, published
from nystromformer.lab.report.runs import Run, is_finite
from nystromformer.lab.report.settings import IRRELEVANT, SEED, phrase

NOTHING = "—"
MIB = 2**20


class Table(NamedTuple):
    """Cells as text, without any markup."""

    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """A Markdown table."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = [[plain(cell) for cell in row] for row in [self.header, *self.rows]]
        lines.insert(1, rule)
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(cell: str) -> str:
    """A cell that Markdown does not read as markup."""
    for character in "\\`*_[]<>|":
        cell = cell.replace(character, f"\\{character}")
    return " ".join(cell.split())


def to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """One line a row under the keys of the first; what is missing is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def number(value: float | None, form: str = ".2f") -> str:
    """A number, or a dash where there is none."""
    return NOTHING if value is None else format(value, form)


def spread(values: list[float], form: str = ".2f") -> str:
    """As in "56.95 ± 0.31"; one value stands alone."""
    mean, sd = mean_and_sd(values)
    return number(mean, form) if sd is None else f"{mean:{form}} ± {sd:{form}}"


def accuracies(point: Point) -> list[float]:
    """Test accuracies of the finished runs, in per cent."""
    return [100 * value for value in point.values("test_accuracy")]


def progress(point: Point) -> str:
    """How far its unfinished runs are, as in "500; 1,000 of 5,000 steps"."""
    unfinished = [run for run in point.runs if not run.result]
    if not unfinished:
        return ""
    steps = "; ".join(f"{run.step:,}" for run in unfinished)
    return f"{steps} of {unfinished[0].config.train.num_steps:,} steps"


def num_stuck(point: Point) -> int:
    """How many of its runs ended at a floor."""
    return sum(floor_reached(run) is not None for run in point.runs)


def accuracy(point: Point) -> str:
    """As in "56.95 ± 0.31 (2 of 4, 1 at a floor, 1 failed, 0; 500 of 5,000 steps)"."""
    done, total = len(point.finished), len(point.runs)
    notes = [f"{done} of {total}" if done < total else f"{done}"] if done else []
    if stuck := num_stuck(point):
        notes.append(f"{stuck} at a floor")
    if failed := sum(run.failure is not None for run in point.runs):
        notes.append(f"{failed} failed")
    if done < total:
        notes.append(progress(point))
    return f"{spread(accuracies(point))} ({', '.join(notes)})"


def _published(attention: str, task: str) -> str:
    found = published(attention, task)
    cited = [f"{found[x]:.2f} [{n}]" for n, x in enumerate(SOURCES, 1) if x in found]
    return ", ".join(cited) or NOTHING


def marks(remarks: Mapping[str, str]) -> dict[str, str]:
    """A letter for each task that has a remark."""
    return dict(zip(remarks, string.ascii_lowercase, strict=False))


def accuracy_table(points: list[Point], remarks: Mapping[str, str] = {}) -> Table:
    """Attentions × tasks; first the floors, and the published beside what is ours.

    With all tasks of the benchmark their average too, where none is missing. Of a task
    that has a remark each of our cells carries the remark's letter, and so does what is
    averaged over it.
    """
    signs = {task: f" [{letter}]" for task, letter in marks(remarks).items()}
    signs["average"] = "".join(signs.values())

    def signed(text: str, column: str) -> str:
        return text if text == NOTHING else text + signs.get(column, "")

    tasks = list(dict.fromkeys(point.task for point in points))
    columns = [*tasks, "average"] if set(TASKS) <= set(tasks) else tasks
    header = [f"{name}{kind}" for name in columns for kind in ("", ", published")]
    floors: dict[str, dict[str, str]] = {}
    cells: dict[str, dict[str, Point]] = {}
    for point in sorted(points, key=by_attention):
        cells.setdefault(point.label(), {})[point.task] = point
        for name, value in point.floors.items():
            words = ", ".join(filter(None, [f"floor: {name}", point.data_label()]))
            floors.setdefault(words, {})[point.task] = f"{value:.2%}".rstrip("%")
    rows = [
        [
            words,
            *(
                text
                for name in columns
                for text in (signed(of.get(name, NOTHING), name), NOTHING)
            ),
        ]
        for words, of in floors.items()
    ]
    for label, of in cells.items():
        attention = next(iter(of.values())).attention
        row = [label]
        for name in columns:
            ours = accuracy(of[name]) if name in of else NOTHING
            ours = _average(of) if name == "average" else ours
            row += [signed(ours, name), _published(attention, name)]
        rows.append(row)
    return Table(["attention", *header], rows)


def _average(of: dict[str, Point]) -> str:
    values = [accuracies(of[name]) for name in TASKS if name in of]
    whole = len(values) == len(TASKS) and all(values)
    return number(statistics.fmean(map(statistics.fmean, values)) if whole else None)


def accuracy_rows(
    points: list[Point], remarks: Mapping[str, str] = {}
) -> list[dict[str, Any]]:
    """accuracy.csv: one row a point, accuracies in per cent."""
    rows = []
    for point in points:
        mean, sd = mean_and_sd(accuracies(point))
        found = published(point.attention, point.task)
        floors = [f"{name} {value:.2%}" for name, value in point.floors.items()]
        rows.append(
            {
                "task": point.task,
                "attention": point.attention,
                "variant": point.label(),
                "settings": settings(point),
                "test_accuracy": None if mean is None else f"{mean:.2f}",
                "standard_deviation": None if sd is None else f"{sd:.2f}",
                "seeds": len(point.finished),
                "seeds_at_a_floor": num_stuck(point),
                "unfinished": progress(point),
                "floors": "; ".join(floors),
                "remark": remarks.get(point.task),
                **{f"published: {source}": found.get(source) for source in SOURCES},
            }
        )
    return rows


def settings(point: Point) -> str:
    """The preset of configs/ and what differs from it, seeds aside."""
    preset, changes = nearest_preset(point.runs[0].config, IRRELEVANT | {SEED})
    words = [phrase(key, value) for key, value in changes.items()]
    return ", ".join([f"{preset} preset", *words])


def by_device(point: Point) -> dict[str, Point]:
    """Its finished runs apart by device: costs of two devices have no mean."""
    found: dict[str, list[Run]] = {}
    for run in point.finished:
        found.setdefault(str((run.result or {}).get("device") or NOTHING), []).append(
            run
        )
    return {
        device: Point(point.task, point.attention, point.named, runs)
        for device, runs in found.items()
    }


def mebibytes(point: Point, key: str) -> list[float]:
    """`values` of a number of bytes, in MiB."""
    return [value / MIB for value in point.values(key)]


def cost_table(points: Iterable[Point]) -> Table:
    """Settings, throughput and memory of the points of one task, a row a device."""
    header = ["attention", "settings", "parameters", "examples/s", "compiled, MiB"]
    rows = []
    for point in points:
        for device, same in (by_device(point) or {NOTHING: point}).items():
            params = same.values("num_params")
            row = [point.label(), settings(point)]
            row += [number(params[0] if params else None, ",.0f")]
            row += [spread(same.values("examples_per_second"), ",.1f")]
            row += [spread(mebibytes(same, "compiled_bytes"), ",.1f")]
            row += [spread(mebibytes(same, "peak_bytes"), ",.1f"), device]
            rows.append(row)
    return Table([*header, "peak, MiB", "device"], rows)


def _rounded(value: Any) -> str | None:
    return f"{value:.1f}" if is_finite(value) else None


def details(run: Run) -> dict[str, Any]:
    """runs.csv: all that one run has to say of itself."""
    result = run.result or {}
    versions = result.get("versions") or {}
    hashes = result.get("data_sha256") or {}
    percent = {
        key: f"{100 * result[key]:.2f}" if result else None
        for key in ("validation_accuracy", "test_accuracy")
    }
    return {
        "run": run.name,
        "task": run.config.task.name,
        "attention": run.config.attention.name,
        "seed": run.seed,
        "steps": f"{run.step} of {run.config.train.num_steps}",
        "failed": run.failure,
        **percent,
        "stuck_at_floor": floor_reached(run),
        "best_step": result.get("best_step"),
        "parameters": result.get("num_params"),
        "wall_seconds": _rounded(result.get("wall_seconds")),
        "device": result.get("device"),
        "commit": result.get("commit"),
        "versions": ", ".join(f"{name} {value}" for name, value in versions.items()),
        **{
            f"{split}_data_sha256": hashes.get(split)
            for split in ("train", "validation", "test")
        },
        "command": command(run.config, run.name),
    }
