"""The tables of a report, as data frames of text: scores, costs, single runs."""

import itertools
import statistics
import string
from collections.abc import Mapping
from typing import Any

import pandas as pd

from lra_tasks.task import LRA
from nystromformer.experiments.objectives import is_rate
from nystromformer.experiments.report.frame import Frame, phrase, points, values
from nystromformer.experiments.report.presets import command
from nystromformer.experiments.report.published import SOURCES, published
from nystromformer.experiments.report.runs import is_finite, scale

NOTHING = "—"
SOURCE, LENGTH = "train.init_from", {"train.num_steps", "train.num_epochs"}
AVERAGE = "average"
COSTS = {
    "training, examples/s": "examples_per_second",
    "compiled, MiB": "compiled_bytes",
    "peak, MiB": "peak_bytes",
}


def mean_and_sd(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def spread(values: list[float], form: str = ".2f") -> str:
    """As in "56.95 ± 0.31"; one value stands alone, and none is a dash."""
    shown = [f"{x:{form}}" for x in mean_and_sd(values) if x is not None]
    return " ± ".join(shown) or NOTHING


def heading(what: str, metric: str) -> str:
    """As in "listops accuracy, %"."""
    return f"{what} {metric.replace('_', ' ')}{', %' * is_rate(metric)}"


def progress(point: Frame) -> str:
    """The steps of its unfinished runs, as in "500; 1,000 of 5,000 steps"."""
    unfinished = [run for run in point["run"] if not run.result]
    if not unfinished:
        return ""
    steps = "; ".join(f"{run.step:,}" for run in unfinished)
    return f"{steps} of {unfinished[0].config['train']['num_steps']:,} steps"


def score(point: Frame, brief: bool = False) -> str:
    """As in "56.95 ± 0.31 (2 of 4, 1 at a floor, 1 failed, 0; 500 of 5,000 steps)".

    `brief` leaves only the number of seeds in the brackets.
    """
    found = values(point, "test")
    done, total = len(found), len(point)
    notes = [f"{done} of {total}" if done < total else f"{done}"] if done else []
    if brief:
        return " ".join([spread(found), *(f"({note})" for note in notes)])
    if stuck := point["floor"].notna().sum():
        notes.append(f"{stuck} at a floor")
    if share := max(values(point, "fraction_exact"), default=0):
        notes.append(f"exact for {share:.1%}")
    if failed := sum(run.failure is not None for run in point["run"]):
        notes.append(f"{failed} failed")
    if done < total:
        notes.append(progress(point))
    return f"{spread(found)} ({', '.join(notes)})"


def marks(remarks: Mapping[str, str]) -> dict[str, str]:
    """As in " [a]": a letter for each task that has a remark."""
    letters = zip(remarks, string.ascii_lowercase, strict=False)
    return {task: f" [{letter}]" for task, letter in letters}


def score_table(
    frame: Frame, remarks: Mapping[str, str] = {}, brief: bool = False
) -> Frame:
    """Attentions × tasks and metrics; the floors first, the published columns last.

    Rows that have all tasks of the benchmark get an average. Each of our cells of a
    task with a remark carries the remark's letter, and so do averages over it. Rows of
    the presets paper and as_published get the published numbers. `brief`: see `score`.
    """
    signs = marks(remarks)
    floors: dict[str, dict[str, str]] = {}
    rows: dict[str, dict[str, str]] = {}
    for point in sorted(points(frame), key=lambda point: point["place"].iloc[0]):
        first = point.iloc[0]
        task, attention = first["task"], first["attention"]
        column, sign = heading(task, first["metric"]), signs.get(task, "")
        # As in "length 512": what tells its data from others of the same task.
        keys = [x for x in first["named"] if x.startswith(("task.", "preset"))]
        data = [phrase(key, first["named"][key]) for key in keys]
        row = rows.setdefault(first["label"], {})
        row[column] = score(point, brief) + sign
        if first["paper"] and is_rate(first["metric"]):
            row[f"{task} published, %"] = _cited(attention, first["cited"])
        below = {column: floors_of(point)}
        for metric, (found, of_metric) in other_scores(point).items():
            row[heading(task, metric)] = f"{spread(found)} ({len(found)}){sign}"
            below[heading(task, metric)] = of_metric
        for where, rules in below.items():
            for name, value in rules.items():
                words = ", ".join([f"floor: {name}", *data])
                floors.setdefault(words, {})[where] = f"{value:.2f}{sign}"
    average = heading(AVERAGE, "accuracy")
    for name, of in frame[frame["metric"] == "accuracy"].groupby("label"):
        found = {task: values(same, "test") for task, same in of.groupby("task")}
        if all(found.get(task) for task in LRA):
            mean = statistics.fmean(statistics.fmean(found[task]) for task in LRA)
            rows[name][average] = f"{mean:.2f}{''.join(signs.values())}"
            if all(of["paper"]):
                cited = _cited(of["attention"].iloc[0], AVERAGE)
                rows[name][f"{AVERAGE} published, %"] = cited
    pairs = frame[["task", "metric"]].drop_duplicates().to_numpy()
    cells = {**floors, **rows}
    found = dict.fromkeys(column for row in rows.values() for column in row)
    columns = [*(heading(*pair) for pair in pairs), average]
    columns = [x for x in columns if x in found]
    more = [x for x in found if x not in columns]
    columns += sorted(more, key=lambda column: "published" in column)
    table: Frame = pd.DataFrame.from_dict(cells, orient="index").fillna(NOTHING)
    table = table[[column for column in columns if column in table]]
    return table.reset_index(names="attention")


def floors_of(point: Frame) -> dict[str, float]:
    """The floors of its data, which its runs share; empty before one is finished."""
    return next((floors for floors in point["floors"] if floors), {})


def other_scores(point: Frame) -> dict[str, tuple[list[float], dict[str, float]]]:
    """Beside the selected metric, rates on test and their floors, in per cent."""
    results = [run.result for run in point["run"] if run.result]
    floors = results[0].get("other_floors", {}) if results else {}
    return {
        metric: (
            [100 * result[f"test_{metric}"] for result in results],
            {name: 100 * value for name, value in rules.items()},
        )
        for metric, rules in floors.items()
        if is_rate(metric)
    }


def _cited(attention: str, task: str) -> str:
    found = published(attention, task)
    cited = [f"{found[x]:.2f} [{n}]" for n, x in enumerate(SOURCES, 1) if x in found]
    return ", ".join(cited) or NOTHING


def score_rows(frame: Frame, remarks: Mapping[str, str] = {}) -> list[dict[str, Any]]:
    """accuracy.csv: a row for each point, rates in per cent."""
    rows = []
    for point in points(frame):
        first, found = point.iloc[0], values(point, "test")
        mean, sd = (None if x is None else f"{x:.2f}" for x in mean_and_sd(found))
        floors = [f"{name} {value:.2f}" for name, value in floors_of(point).items()]
        cited = published(first["attention"], first["cited"]) if first["paper"] else {}
        rows.append(
            {
                **first[["task", "attention"]],
                "variant": first["label"],
                "settings": ", ".join(said(first)),
                "metric": heading("test", first["metric"]),
                "mean": mean,
                "standard_deviation": sd,
                "seeds": len(found),
                "seeds_at_a_floor": point["floor"].notna().sum(),
                "fraction_exact": max(values(point, "fraction_exact"), default=None),
                "unfinished": progress(point),
                "floors": "; ".join(floors),
                "remark": remarks.get(first["task"]),
                **{f"published: {source}": cited.get(source) for source in SOURCES},
            }
        )
    return rows


def said(row: Any) -> list[str]:
    """The preset of configs/ and what differs from it, or the main settings."""
    if row["preset"]:
        words = [phrase(key, row[key]) for key in row["changes"]]
        return [f"{row['preset']} preset", *words]
    keys = ("train.num_steps", "train.batch_size", "optimizer.learning_rate")
    return [phrase(key, row[key]) for key in keys]


def shared(frame: Frame) -> list[str]:
    """The settings that all rows share, and their device if there is one."""
    rows = [said(point.iloc[0]) for point in points(frame)]
    devices = list(frame["device"].dropna().unique())
    common = [words for words in rows[0] if all(words in row for row in rows)]
    return [*common, *(devices if len(devices) == 1 else [])]


def by_device(frame: Frame) -> dict[str, Frame]:
    """The finished runs by device: costs of two devices are not averaged."""
    done = frame[frame["finished"].astype(bool)]
    return dict(iter(done.groupby(done["device"].fillna(NOTHING), sort=False)))


def cost_table(frame: Frame) -> Frame:
    """Throughput and memory of the points of one task, a row for each device.

    What all rows share of their settings is left to `shared`.
    """
    rows, common = [], shared(frame)
    for point in points(frame):
        label = point["label"].iloc[0]
        known = [*common, *label.split(", ")]
        words = [x for x in said(point.iloc[0]) if x not in known]
        for device, same in (by_device(point) or {NOTHING: point}).items():
            rows.append(
                {
                    "attention": label,
                    "settings": ", ".join(words),
                    "parameters": spread(values(same, "num_params")[:1], ",.0f"),
                    **{x: spread(values(same, k), ",.1f") for x, k in COSTS.items()},
                    "device": "" if device in common else device,
                }
            )
    table = pd.DataFrame(rows)
    return table[[name for name in table if {*table[name]} - {"", NOTHING}]]


def details(row: Any, metrics: list[str]) -> dict[str, Any]:
    """runs.csv: everything about one run; rates in per cent."""
    run, result = row["run"], row["run"].result
    versions = [f"{name} {x}" for name, x in result.get("versions", {}).items()]
    hashes, seconds = result.get("data_sha256", {}), result.get("wall_seconds")
    others = list(result.get("other_floors", {}))
    found = {
        key: f"{scale(metric) * result[key]:.2f}" if key in result else None
        for metric in (*metrics, *others)
        for key in (f"validation_{metric}", f"test_{metric}")
    }
    return {
        "run": run.name,
        **row[["task", "attention", "seed"]],
        "steps": f"{run.step} of {run.config['train']['num_steps']}",
        "failed": run.failure,
        **found,
        "stuck_at_floor": row["floor"],
        "fraction_exact": row["fraction_exact"],
        "best_step": result.get("best_step"),
        "parameters": result.get("num_params"),
        "wall_seconds": f"{seconds:.1f}" if is_finite(seconds) else None,
        **row[["device", "commit"]],
        "versions": ", ".join(versions),
        **{f"{x}_data_sha256": hashes.get(x) for x in ("train", "validation", "test")},
        "command": command(run.config, run.name),
    }


def paired_table(frame: Frame) -> Frame:
    """Differences, seed by seed, to the first of the runs that share all but one named
    setting. A row for each other setting with at least two seeds in common; a column
    for each task. Runs with a source are compared with all from scratch, however long
    these are."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    apart = ["task", "metric", "attention"]
    for (task, metric, _), of in frame.groupby(apart, sort=False):
        column = heading(task, metric).replace("%", "points")
        keys = {key for named in of["named"] for key in named}
        for key in sorted(keys):
            length = LENGTH & keys if key == SOURCE else set()
            others = of[["attention", *sorted(keys - {key} - length)]].map(repr)
            for _, alike in of.groupby(others.agg("\n".join, axis=1), sort=False):
                first, *more = points(alike)
                bases = [first]
                if key == SOURCE:
                    bases = [x for x in (first, *more) if x[key].isna().all()]
                    more = [x for x in more if x[key].notna().all()]
                for base, point in itertools.product(bases, more):
                    ours, theirs = (x.set_index("seed")["test"] for x in (point, base))
                    found = list((ours - theirs).dropna())
                    words = [phrase(x, base[x].iloc[0]) for x in (key, *sorted(length))]
                    if len(found) > 1:
                        pair = point["label"].iloc[0], ", ".join(words)
                        rows.setdefault(pair, {})[column] = (
                            f"{spread(found)} ({len(found)})"
                        )
    names = ["attention", "compared with"]
    table: Frame = pd.DataFrame.from_dict(rows, orient="index").fillna(NOTHING)
    return table.rename_axis(names).reset_index() if rows else table
