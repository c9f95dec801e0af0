"""The tables of a report: scores, paired differences, costs."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from lra_tasks.task import LRA
from nystromformer.experiments.experiment import is_rate
from nystromformer.experiments.report.published import AVERAGE, SOURCES, published
from nystromformer.experiments.report.runs import Frame, phrase, scale

DASH, EXACT = "—", "softmax"
DATA = ("preset", "task.")  # keys of settings that may change the floors
COSTS = {  # title -> key of result.json, unit, form
    "parameters": ("num_params", 1, ",.0f"),
    "training, examples/s": ("examples_per_second", 1, ",.1f"),
    "compiled, MiB": ("compiled_bytes", 2**20, ",.1f"),
    "peak, MiB": ("peak_bytes", 2**20, ",.1f"),
}
# What may be changed in a run beside published numbers: how a batch is cut, when it is
# validated, the number of landmarks, and where the pre-trained weights lie.
STILL_PAPER = {
    *("train.grad_accum_steps", "train.length_buckets", "train.eval_every"),
    *("model.remat", "attention.num_landmarks", "train.init_from", "task.tokenizer"),
}


def spread(values: Frame, form: str = ".2f") -> str:
    """As in "56.95 ± 0.31"; one value stands alone, and none is a dash."""
    shown = [format(x, form) for x in (values.mean(), values.std()) if pd.notna(x)]
    return " ± ".join(shown) or DASH


def heading(what: str, metric: str) -> str:
    """As in "listops accuracy, %"."""
    return f"{what} {metric.replace('_', ' ')}{', %' * is_rate(metric)}"


def score_rows(frame: Frame) -> Frame:
    """The scores as numbers: a row for each task, label and metric; rates in per cent.

    Metrics are the one that chose the weights, and the other rates that have floors.
    `score` is as in "56.95 ± 0.31 (2 of 4, 1 at a floor, 0; 500 of 5,000 steps)".
    """
    rows = []
    for _, runs in frame.groupby(["task", "label"], sort=False):
        done, failed = runs[runs["finished"]], runs["failed"].count()
        steps = "; ".join(f"{step:,}" for step in runs["step"][~runs["finished"]])
        first = (done if len(done) else runs).iloc[0]
        exact = first["fraction_exact"]
        others = {x: y for x, y in first["other_floors"].items() if is_rate(x)}
        for metric, floors in {first["metric"]: first["floors"], **others}.items():
            values = scale(metric) * done.get(f"test_{metric}", done["score"])
            stuck = 0 if metric in others else runs["floor"].count()
            notes = {
                f"{len(done)}" + f" of {len(runs)}" * bool(steps): len(done),
                f"{stuck} at a floor": stuck,
                f"exact for {exact:.1%}": exact >= 0.0005,
                f"{failed} failed": failed,
                f"{steps} of {first['num_steps']:,} steps": steps,
            }
            said = ", ".join(words for words, holds in notes.items() if holds)
            row = first[["task", "attention", "label", "named", "place"]].to_dict()
            row |= {"settings": ", ".join(settings(first)), "metric": metric}
            row |= {"score": f"{spread(values)} ({said})", "mean": values.mean()}
            row |= {"standard_deviation": values.std(), "seeds": len(done)}
            row["floors"] = {x: round(scale(metric) * y, 4) for x, y in floors.items()}
            row["published"] = {} if metric in others else cited(first)
            rows.append(row)
    return pd.DataFrame(rows)


def cited(run: Any) -> dict[str, float]:
    """Source -> published score, if the run has the published settings."""
    task = "imdb" if run["settings"]["preset"] == "subwords" else run["task"]
    pretrained = run["settings"]["train.init_from"] is not None
    theirs = run["settings"]["preset"] in ("paper", "as_published", "subwords")
    if not theirs or pretrained == (task in LRA) or {*run["changed"]} - STILL_PAPER:
        return {}
    return published(run["attention"], task)


def score_table(rows: Frame) -> Frame:
    """Attentions × tasks and metrics: floors first, published columns last.

    Rows that have all tasks of the benchmark get an average.
    """
    floors, cells = defaultdict(dict), defaultdict(dict)
    for row in sorted(rows.itertuples(), key=lambda row: row.place):
        column = heading(row.task, row.metric)
        cells[row.label][column] = row.score
        data = [phrase(*x) for x in row.named.items() if x[0].startswith(DATA)]
        for rule, value in row.floors.items():
            floors[", ".join([f"floor: {rule}", *data])][column] = f"{value:.2f}"
        if row.published:
            cells[row.label][f"{row.task} published, %"] = _cite(row.published)
    lra = rows["task"].isin(LRA) & (rows["metric"] == "accuracy") & (rows["seeds"] > 0)
    for name, of in rows[lra].groupby("label"):
        if len(of) == len(LRA):
            cells[name][heading(AVERAGE, "accuracy")] = f"{of['mean'].mean():.2f}"
            if all(of["published"]):
                theirs = published(of["attention"].iloc[0], AVERAGE)
                cells[name][f"{AVERAGE} published, %"] = _cite(theirs)
    table: Frame = pd.DataFrame.from_dict(floors | cells, orient="index").fillna(DASH)
    ours = [heading(*x) for x in rows[["task", "metric"]].drop_duplicates().to_numpy()]
    more = [x for x in table if x not in ours]
    more.sort(key=lambda name: "published" in name)
    return table[[*ours, *more]].reset_index(names="attention")


def _cite(found: Mapping[str, float]) -> str:
    """As in "37.15 [1], 38.51 [2]", numbered as in SOURCES."""
    return ", ".join(f"{x:.2f} [{[*SOURCES].index(y) + 1}]" for y, x in found.items())


def settings(run: Any) -> list[str]:
    """The preset and what the command line changes, as far as the label lacks them."""
    keys = [key for key in ("preset", *run["changed"]) if key not in run["named"]]
    found = {key: run["settings"][key] for key in keys}
    return [phrase(*item) for item in found.items() if item[1] is not None]


def shared(runs: Frame) -> list[str]:
    """The settings, device and commit that all finished runs share."""
    done = runs[runs["finished"]]
    rows = [settings(run) for _, run in done.iterrows()]
    common = [x for x in (rows or [[]])[0] if all(x in row for row in rows)]
    made_by = (done[key].dropna().unique() for key in ("device", "commit"))
    return [*common, *(found[0] for found in made_by if len(found) == 1)]


def cost_table(runs: Frame) -> Frame:
    """Costs of the finished runs of one task, a row for each label and device."""
    rows, common = [], shared(runs)
    for (name, device), of in runs.groupby(["label", "device"], sort=False):
        words = [x for x in settings(of.iloc[0]) if x not in common]
        row = {"attention": name, "settings": ", ".join(words)}
        for title, (key, unit, form) in COSTS.items():
            found = of[key][:1] if of[key].nunique() == 1 else of[key]
            row[title] = spread(found.astype(float) / unit, form)
        rows.append({**row, "device": "" if device in common else device})
    table = pd.DataFrame(rows)
    return table[[name for name in table if {*table[name]} - {"", DASH}]]


def difference(ours: Frame, theirs: Frame) -> tuple[float, float, int]:
    """Mean of `ours` − `theirs` over their common seeds, bound of chance, seeds.

    The bound is half the paired t interval of 95 % over the seeds. Of one seed it is
    two standard deviations of the difference of two rates, each over the test examples;
    NaN for what is no rate.
    """
    pairs = ours.merge(theirs, on="seed")
    found, count = pairs["score_x"] - pairs["score_y"], len(pairs)
    if count > 1:
        return found.mean(), stdtrit(count - 1, 0.975) * found.sem(), count
    variance = pairs["score_sd_x"] ** 2 + pairs["score_sd_y"] ** 2
    return found.mean(), 2 * variance.mean() ** 0.5, count


def paired_table(frame: Frame) -> Frame:
    """Differences to the first attention, to exact attention and to the row's own.

    Of an attention with several rows, that with the most seeds is the reference.
    """
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    done = frame[frame["finished"]]
    for (task, metric), of in done.groupby(["task", "metric"], sort=False):
        column = heading(task, metric).replace("%", "points")
        names = of.groupby("attention", sort=False)["label"]
        bases = names.agg(lambda labels: max(labels, key=list(labels).count))
        for name, ours in of.groupby("label", sort=False):
            own = bases[ours["attention"].iloc[0]]
            for base in dict.fromkeys((bases.iloc[0], bases.get(EXACT, own), own)):
                mean, bound, seeds = difference(ours, of[of["label"] == base])
                known = column in cells.get(f"{base} − {name}", {})
                if known or base == name or not seeds:
                    continue
                said = f"{mean:+.2f} ({seeds})"
                if pd.notna(bound):
                    beyond = "exceeds" if abs(mean) > bound else "within"
                    said = f"{mean:+.2f} ± {bound:.2f} ({seeds}), {beyond} chance"
                cells[f"{name} − {base}"][column] = said
    table: Frame = pd.DataFrame.from_dict(cells, orient="index").fillna(DASH)
    return table.reset_index(names="difference")
