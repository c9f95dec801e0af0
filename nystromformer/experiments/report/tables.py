"""The tables of a report: scores, paired differences, costs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from scipy.special import stdtrit

from lra_tasks import LRA
from nystromformer.errors import ConfigError
from nystromformer.experiments.markdown import DASH
from nystromformer.experiments.report.runs import heading, scale, sort_key

EXACT = "softmax"


class Cost(NamedTuple):
    """What a run costs, as a column of a table and for some an axis of figures.

    key: its name in result.json.
    unit: what its value is divided by.
    format: how a table writes it.
    axis_title: the label of the axis.
    is_higher_better: whether the larger value is the smaller cost, as of a speed.
    """

    key: str
    unit: float
    format: str
    axis_title: str = ""
    is_higher_better: bool = False


class Floor(NamedTuple):
    """What a rule reaches, in a column of the table of scores."""

    rule: str
    column: str
    preset: str
    text: str


EXACT_BY_LENGTH = "exact by length, %"
SPEED_TITLE = "training, examples/s of a shared machine"
SPEED = Cost(
    key="examples_per_second",
    unit=1,
    format=",.1f",
    axis_title=SPEED_TITLE,
    is_higher_better=True,
)
MEMORY = Cost(
    key="compiled_bytes",
    unit=2**20,
    format=",.1f",
    axis_title="memory of a training step, MiB",
)
COSTS = {
    "parameters": Cost("num_params", 1, ",.0f"),
    SPEED_TITLE: SPEED,
    "compiled, MiB": MEMORY,
    EXACT_BY_LENGTH: Cost("fraction_exact", 0.01, ".1f"),
}


def format_spread(values: pd.Series, number_format: str = ".2f") -> str:
    """Writes mean and standard deviation, as in "56.95 ± 0.31".

    A single value, or several equal ones, are written without "±"; if there is no
    value, the text is a dash.
    """
    mean = values.mean()
    deviation = values.std()
    if pd.isna(mean):
        return DASH
    if deviation > 0:
        return f"{mean:{number_format}} ± {deviation:{number_format}}"
    return f"{mean:{number_format}}"


def score_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Makes the table of attentions × tasks and metrics.

    A task that was run with several options has a column for each. Floors are the first
    rows, a row for each preset where these have different ones. Rows that have all
    tasks of the benchmark get an average.
    """
    cells: dict[str, dict[str, str]] = defaultdict(dict)  # column -> row -> text
    floors: list[Floor] = []
    for _, runs in frame.groupby(["column", "label"], sort=False):
        # A finished run has floors.
        first_run = runs.sort_values("finished", ascending=False, kind="stable").iloc[0]
        row = first_run["row"]
        column = first_run["column"]
        if first_run["data"]:
            column += f" ({first_run['data']})"
        cells[column][row] = _format_score(runs)

        for rule, value in first_run["floors"].items():
            text = f"{scale(first_run['metric']) * value:.2f}"
            floors.append(Floor(rule, column, first_run["preset"], text))

    floor_rows = _add_floors(floors, cells)
    _add_averages(frame, cells)
    rows = [*floor_rows, *frame["row"].unique()]
    table = pd.DataFrame(cells, index=rows).fillna(DASH)
    return table.reset_index(names="attention")


def _add_floors(floors: Sequence[Floor], cells: dict[str, dict[str, str]]) -> list[str]:
    """Adds the floors to the cells, and returns the names of their rows."""
    texts = defaultdict(set)
    for floor in floors:
        texts[floor.rule, floor.column].add(floor.text)
    rules_of_presets = {rule for (rule, _), x in texts.items() if len(x) > 1}

    rows = []
    for floor in floors:
        row = f"floor: {floor.rule}"
        if floor.preset and floor.rule in rules_of_presets:
            row += f", {floor.preset}"
        cells[floor.column][row] = floor.text
        rows.append(row)
    return list(dict.fromkeys(rows))


def _format_score(runs: pd.DataFrame) -> str:
    """The cell of one row, as in "56.95 ± 0.31 (2 of 4; 0, 500 of 5,000 steps)".

    Runs that have failed are counted: "— (0 of 2, 1 failed; 0, 20 of 5,000 steps)".
    """
    unfinished = runs[~runs["finished"]]
    num_finished = len(runs) - len(unfinished)
    score = format_spread(runs["score"])
    if unfinished.empty:
        return f"{score} ({num_finished})"

    steps = ", ".join(f"{step:,}" for step in unfinished["step"])
    num_steps = unfinished["num_steps"].max()
    if num_steps:
        steps += f" of {num_steps:,}"
    count = f"{num_finished} of {len(runs)}"
    num_failed = unfinished["failed"].notna().sum()
    if num_failed:
        count += f", {num_failed} failed"
    return f"{score} ({count}; {steps} steps)"


def _add_averages(frame: pd.DataFrame, cells: dict[str, dict[str, str]]) -> None:
    """Adds the average over the benchmark of each row that has all its tasks."""
    headings = [heading(task, "accuracy") for task in LRA]
    is_lra = frame["column"].isin(headings) & frame["finished"]
    has_one_column = frame["data"] == ""
    for row, runs in frame[is_lra & has_one_column].groupby("row", sort=False):
        means = runs.groupby("task")["score"].mean()
        if len(means) < len(LRA):
            continue
        cells[heading("average", "accuracy")][row] = f"{means.mean():.2f}"


def cost_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Makes the table of what finished runs cost.

    It has a row for each task, label and device. A column is left out if it is empty or
    zero in all rows, as the share of exact examples is where no attention has
    landmarks.
    """
    rows = []
    finished = frame[frame["finished"]]
    runs = finished.drop_duplicates("run").sort_values(
        "task", key=lambda tasks: tasks.map(sort_key), kind="stable"
    )
    keys = ["task", "label", "device"]
    for (task, label, device), group in runs.groupby(keys, sort=False):
        row = {"task": task, "attention": label}
        for title, cost in COSTS.items():
            values = group[cost.key].astype(float) / cost.unit
            row[title] = format_spread(values, cost.format)
        row["device"] = device
        rows.append(row)

    table = pd.DataFrame(rows)
    empty_cells = {DASH, "0.0"}
    columns = [name for name in table if set(table[name]) - empty_cells]
    return table[columns]


def format_difference(runs: pd.DataFrame, reference: pd.DataFrame) -> str:
    """Writes the mean difference over common seeds, and whether it exceeds chance.

    The bound is √(s² + e²). s is half the paired t interval of 95 % over the seeds. e
    is two standard deviations of the difference of two accuracies, each over the test
    examples. All seeds answer the same examples: an attention that these happen to suit
    is ahead with every seed, so that more seeds make s smaller and not e. Answers that
    agree from row to row make the true e smaller; it is a bound.

    Of one seed the bound is e: what is beyond this "test noise" may still be a matter
    of the seed. Where e is not known, as for losses, F1 and accuracies of tokens,
    nothing is judged.

    Returns:
      As in "+3.00 ± 5.33 (3), within chance"; nothing if there is no common seed.
    """
    pairs = runs.merge(reference, on="seed", suffixes=("", "_reference"))
    count = len(pairs)
    if count == 0:
        return ""

    differences = pairs["score"] - pairs["score_reference"]
    mean = differences.mean()
    seed_error = 0.0
    if count > 1:
        seed_error = stdtrit(count - 1, 0.975) * differences.sem()
    deviation = pairs["score_sd"].mean()
    reference_deviation = pairs["score_sd_reference"].mean()
    test_error = 2 * math.hypot(deviation, reference_deviation)
    if math.isnan(test_error):
        if count == 1:
            return f"{mean:+.2f} (1)"
        return f"{mean:+.2f} ± {seed_error:.2f} ({count}), of the seeds alone"

    bound = math.hypot(seed_error, test_error)
    comparison = "exceeds" if abs(mean) > bound else "within"
    noise = "chance" if count > 1 else "test noise"
    return f"{mean:+.2f} ± {bound:.2f} ({count}), {comparison} {noise}"


def paired_table(frame: pd.DataFrame, compare_with: Sequence[str] = ()) -> pd.DataFrame:
    """Makes the table of differences from the rows of some attentions.

    A row is compared with that row of the attention that has the most seeds, of those
    of its own preset if there are any; of equally many with the one of which the
    command line changed least. Runs are compared where their test data are the same.

    Args:
      frame: a row for each run and metric.
      compare_with: the reference attentions; if there are none, exact attention and the
        first attention of each column.

    Raises:
      ConfigError: for a reference attention that no run has.
    """
    known_attentions = list(frame["attention"].unique())
    for attention in compare_with:
        if attention not in known_attentions:
            raise ConfigError(
                f"differences from {attention}: no run has this attention; "
                f"name one of {', '.join(known_attentions)}"
            )

    cells: dict[str, dict[str, str]] = defaultdict(dict)  # row -> column -> text
    finished = frame[frame["finished"]]
    by_label = finished.groupby(["column", "label"])
    test_data = by_label["test_data"].transform("first").fillna("")
    for (column, _), runs in finished.groupby(["column", test_data], sort=False):
        points = column.replace("%", "points")
        group_of_label = dict(list(runs.groupby("label", sort=False)))
        references = compare_with or (EXACT, runs["attention"].iloc[0])
        for label, reference in _list_pairs(runs, references):
            text = format_difference(group_of_label[label], group_of_label[reference])
            if text:
                cells[f"{label} − {reference}"][points] = text

    table = pd.DataFrame.from_dict(cells, orient="index").fillna(DASH)
    return table.reset_index(names="difference")


def _list_pairs(
    runs: pd.DataFrame, reference_attentions: Sequence[str]
) -> list[tuple[str, str]]:
    """Each label and the reference of its row, no pair twice."""
    preset_of_label = dict(zip(runs["label"], runs["preset"], strict=True))
    num_changes = dict(zip(runs["label"], runs["overrides"].map(len), strict=True))
    pairs: dict[frozenset[str], tuple[str, str]] = {}
    for attention in reference_attentions:
        candidates = runs[runs["attention"] == attention]
        if candidates.empty:
            continue
        for label, preset in preset_of_label.items():
            of_preset = candidates[candidates["preset"] == preset]
            labels = list((candidates if of_preset.empty else of_preset)["label"])
            # Sorted first, since the first of equal ones is taken.
            labels.sort(key=num_changes.__getitem__)
            reference = max(labels, key=labels.count)
            if label != reference:
                pairs.setdefault(frozenset((label, reference)), (label, reference))
    return list(pairs.values())
