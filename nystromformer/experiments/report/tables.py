"""The tables of a report: scores, paired differences, costs."""

import re
from collections import defaultdict
from typing import Any

import pandas as pd
from scipy.special import stdtrit

from lra_tasks.task import LRA
from nystromformer.experiments.experiment import is_rate
from nystromformer.experiments.report.published import (
    AVERAGE,
    SOURCES,
    TABLE3,
    published,
)
from nystromformer.experiments.report.runs import UNNAMED, Frame, scale

DASH, EXACT = "—", "softmax"
DATA = ("preset", "task.")  # keys of settings that may change the floors
COSTS = {  # title -> key of result.json, unit, form
    "parameters": ("num_params", 1, ",.0f"),
    "training, examples/s": ("examples_per_second", 1, ",.1f"),
    "compiled, MiB": ("compiled_bytes", 2**20, ",.1f"),
    "exact by length, %": ("fraction_exact", 0.01, ".1f"),
}
PUBLISHED = ("paper", "as_published", "subwords")  # presets with others' numbers
# What may be changed in a run beside them: how a batch is cut, when it is validated,
# the number of landmarks, and where the pre-trained weights lie.
STILL_PAPER = UNNAMED | {
    *("train.grad_accum_steps", "train.length_buckets", "train.eval_every"),
    *("model.remat", "attention.num_landmarks", "train.init_from", "task.tokenizer"),
}


def spread(values: Frame, form: str = ".2f") -> str:
    """As in "56.95 ± 0.31"; equal values stand alone, and none is a dash."""
    mean, sd = values.mean(), values.std()
    if pd.isna(mean):
        return DASH
    return f"{mean:{form}} ± {sd:{form}}" if sd > 0 else format(mean, form)


def heading(what: str, metric: str) -> str:
    """As in "listops accuracy, %"."""
    return f"{what} {metric.replace('_', ' ')}{', %' * is_rate(metric)}"


def score_table(frame: Frame) -> Frame:
    """Attentions × tasks and metrics: floors first, published columns last.

    Metrics are the one that chose the weights, and the other rates that have floors.
    Rows that have all tasks of the benchmark get an average.
    """
    floors, cells, ours = defaultdict(dict), defaultdict(dict), []
    for (name, task), runs in frame.groupby(["label", "task"], sort=False):
        first = runs.sort_values("finished", ascending=False, kind="stable").iloc[0]
        data = [x for k, x in first["named"].items() if k.startswith(DATA)]
        others = {x: y for x, y in first["other_floors"].items() if is_rate(x)}
        for metric, rules in {first["metric"]: first["floors"], **others}.items():
            ours.append(column := heading(task, metric))
            cells[name][column] = _score(runs, metric)
            for rule, value in rules.items():
                floors[", ".join([f"floor: {rule}", *data])][column] = (
                    f"{scale(metric) * value:.2f}"
                )
        if theirs := _published(first, task):
            cells[name][f"{task} published, %"] = theirs
    lra = frame[frame["task"].isin(LRA) & frame["finished"]]
    for name, runs in lra[lra["metric"] == "accuracy"].groupby("label", sort=False):
        means = runs.groupby("task")["score"].mean()
        if len(means) == len(LRA):
            cells[name][heading(AVERAGE, "accuracy")] = f"{means.mean():.2f}"
            if theirs := min(_published(run, AVERAGE) for _, run in runs.iterrows()):
                cells[name][f"{AVERAGE} published, %"] = theirs
    table: Frame = pd.DataFrame.from_dict(floors | cells, orient="index").fillna(DASH)
    others = sorted(
        table.columns.difference(ours, sort=False), key=lambda x: "published" in x
    )
    return table[[*dict.fromkeys(ours), *others]].reset_index(names="attention")


def _score(runs: Frame, metric: str) -> str:
    """As in "56.95 ± 0.31 (2 of 4; 0, 500 of 5,000 steps)"."""
    done, rest = runs[runs["finished"]], runs[~runs["finished"]]
    values = scale(metric) * done.get(f"test_{metric}", done["score"]).astype(float)
    if rest.empty:
        return f"{spread(values)} ({len(done)})"
    steps = ", ".join(f"{step:,}" for step in rest["step"])
    most = rest["settings"].iloc[0]["train.num_steps"]
    return f"{spread(values)} ({len(done)} of {len(runs)}; {steps} of {most:,} steps)"


def _published(run: Any, task: str) -> str:
    """As in "37.15 [1], 38.51 [2]", if the run has the published settings.

    Table 2 is fine-tuned, Table 3 trained from scratch.
    """
    preset, source = (run["settings"][x] for x in ("preset", "train.init_from"))
    task = "imdb" if preset == "subwords" else task
    changed = {*re.findall(r"--config\.([\w.]+)", run["command"])} - STILL_PAPER
    if preset not in PUBLISHED or changed or (source is None) != (task in TABLE3):
        return ""
    found = published(run["attention"], task)
    return ", ".join(f"{x:.2f} [{[*SOURCES].index(y) + 1}]" for y, x in found.items())


def cost_table(runs: Frame) -> Frame:
    """Costs of the finished runs of one task, a row for each label and device."""
    rows = []
    for (name, device), of in runs.groupby(["label", "device"], sort=False):
        costs = {
            title: spread(of[key].astype(float) / unit, form)
            for title, (key, unit, form) in COSTS.items()
        }
        rows.append({"attention": name, **costs, "device": device})
    table = pd.DataFrame(rows)
    return table[[name for name in table if {*table[name]} - {DASH, "0.0"}]]


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
    """Differences to exact attention and to the first attention of a task.

    Of an attention with several rows, that with the most seeds is the reference.
    """
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    done = frame[frame["finished"]]
    for (task, metric), of in done.groupby(["task", "metric"], sort=False):
        column = heading(task, metric).replace("%", "points")
        rows = dict(list(of.groupby("label", sort=False)))
        for attention in dict.fromkeys((EXACT, of["attention"].iloc[0])):
            labels = [*of["label"][of["attention"] == attention]]
            base = max(labels, key=labels.count, default="")
            theirs = rows.pop(base, of[:0])
            for name, ours in rows.items():
                mean, bound, seeds = difference(ours, theirs)
                if not seeds:
                    continue
                said = f"{mean:+.2f} ({seeds})"
                if pd.notna(bound):
                    beyond = "exceeds" if abs(mean) > bound else "within"
                    said = f"{mean:+.2f} ± {bound:.2f} ({seeds}), {beyond} chance"
                cells[f"{name} − {base}"][column] = said
    table: Frame = pd.DataFrame.from_dict(cells, orient="index").fillna(DASH)
    return table.reset_index(names="difference")
