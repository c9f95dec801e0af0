"""The tables of a report: scores, paired differences, costs."""

import math
from collections import defaultdict

import pandas as pd
from scipy.special import stdtrit

from lra_tasks.task import LRA
from nystromformer.experiments.report.published import AVERAGE, cite
from nystromformer.experiments.report.runs import Frame, heading, scale

DASH, EXACT = "—", "softmax"
COSTS = {  # title -> key of result.json, unit, form
    "parameters": ("num_params", 1, ",.0f"),
    "training, examples/s": ("examples_per_second", 1, ",.1f"),
    "compiled, MiB": ("compiled_bytes", 2**20, ",.1f"),
    "exact by length, %": ("fraction_exact", 0.01, ".1f"),
}


def spread(values: Frame, form: str = ".2f") -> str:
    """As in "56.95 ± 0.31"; equal values stand alone, and none is a dash."""
    mean, sd = values.mean(), values.std()
    if pd.isna(mean):
        return DASH
    return f"{mean:{form}} ± {sd:{form}}" if sd > 0 else format(mean, form)


def score_table(frame: Frame) -> Frame:
    """Attentions × tasks and metrics: floors first, published columns last.

    Rows that have all tasks of the benchmark get an average.
    """
    cells, floors = defaultdict(dict), []
    for (column, name), of in frame.groupby(["column", "label"], sort=False):
        cells[column][name] = _score(of)
        first = of.sort_values("finished", ascending=False, kind="stable").iloc[0]
        for rule, value in first["floors"].items():
            floors.append(", ".join(filter(None, (f"floor: {rule}", first["data"]))))
            cells[column][floors[-1]] = f"{scale(first['metric']) * value:.2f}"
        if theirs := cite(first, first["task"]):
            cells[f"{first['task']} published, %"][name] = theirs
    lra = frame[frame["column"].isin([heading(task, "accuracy") for task in LRA])]
    for name, of in lra[lra["finished"]].groupby("label", sort=False):
        means = of.groupby("task")["score"].mean()
        if len(means) == len(LRA):
            cells[heading(AVERAGE, "accuracy")][name] = f"{means.mean():.2f}"
            if theirs := min(cite(run, AVERAGE) for _, run in of.iterrows()):
                cells[f"{AVERAGE} published, %"][name] = theirs
    rows = [*dict.fromkeys(floors), *frame["label"].unique()]
    table: Frame = pd.DataFrame(cells, index=rows).fillna(DASH)
    columns = sorted(table, key=lambda name: "published" in name)
    return table[columns].reset_index(names="attention")


def _score(runs: Frame) -> str:
    """As in "56.95 ± 0.31 (2 of 4; 0, 500 of 5,000 steps)"."""
    rest = runs[~runs["finished"]]
    done, values = len(runs) - len(rest), spread(runs["score"])
    if rest.empty:
        return f"{values} ({done})"
    steps = ", ".join(f"{step:,}" for step in rest["step"])
    most = rest["settings"].iloc[0]["train.num_steps"]
    return f"{values} ({done} of {len(runs)}; {steps} of {most:,} steps)"


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


def difference(ours: Frame, theirs: Frame) -> str:
    """As in "+3.00 ± 4.30 (3), within chance": over common seeds; none: "".

    The bound is half the paired t interval of 95 % over the seeds. Of one seed it is
    two standard deviations of the difference of two rates, each over the test examples:
    what is beyond "test noise" may still be a matter of the seed.
    """
    if (pairs := ours.merge(theirs, on="seed")).empty:
        return ""
    found, count = pairs["score_x"] - pairs["score_y"], len(pairs)
    bound = stdtrit(count - 1, 0.975) * found.sem()
    if count == 1:
        bound = 2 * math.hypot(pairs["score_sd_x"].item(), pairs["score_sd_y"].item())
    mean = found.mean()
    if pd.isna(bound):  # one seed, and no accuracy of examples
        return f"{mean:+.2f} (1)"
    beyond = "exceeds" if abs(mean) > bound else "within"
    noise = "test noise" if count == 1 else "chance"
    return f"{mean:+.2f} ± {bound:.2f} ({count}), {beyond} {noise}"


def paired_table(frame: Frame) -> Frame:
    """Differences to exact attention and to the first attention of a task.

    Of an attention with several rows, that with the most seeds is the reference.
    """
    cells, done = defaultdict(dict), frame[frame["finished"]]
    data = done.groupby(["column", "label"])["test_data"].transform("first").fillna("")
    for (column, _), of in done.groupby(["column", data], sort=False):
        rows = dict(list(of.groupby("label", sort=False)))
        for attention in dict.fromkeys((EXACT, of["attention"].iloc[0])):
            labels = [*of["label"][of["attention"] == attention]]
            base = max(labels, key=labels.count, default="")
            theirs = rows.pop(base, of[:0])
            for name, ours in rows.items():
                if said := difference(ours, theirs):
                    cells[f"{name} − {base}"][column.replace("%", "points")] = said
    table: Frame = pd.DataFrame.from_dict(cells, orient="index").fillna(DASH)
    return table.reset_index(names="difference")
