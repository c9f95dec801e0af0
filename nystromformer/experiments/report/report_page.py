"""The page of a report: a README whose blocks are written from the runs beside it.

A block of a page is what stands between these two lines:

    <!-- report: differences runs=quick/* from=softmax,identity -->
    <!-- end of report -->

The report writes a table or pictures there and leaves the rest of the page alone.
`runs` selects runs by patterns of their names, all by default; `from` names the
attentions from which differences are shown.
"""

import fnmatch
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown
from nystromformer.experiments.plotting import save_svg
from nystromformer.experiments.report import tables
from nystromformer.experiments.report.figures import FIGURES, draw_figures
from nystromformer.experiments.report.names import UNNAMED
from nystromformer.experiments.report.records import (
    RUNS_FILE,
    Record,
    read_records,
    write_records,
)
from nystromformer.experiments.report.runs import make_frame

PAGE_FILE = "README.md"
SCORES_FILE = "scores.csv"
FIRST_LINE = "<!-- report: {} -->"
LAST_LINE = "<!-- end of report -->"
# No line between the two begins a block.
BLOCK = re.compile(
    rf"^{FIRST_LINE.format('(.*)')}\n(?:(?!<!-- report: ).*\n)*?{LAST_LINE}$",
    re.MULTILINE,
)
NEW_PAGE = """# Report on {tasks}

## Test scores

<!-- report: scores -->
<!-- end of report -->

## Paired differences

<!-- report: differences{references} -->
<!-- end of report -->

## Costs

<!-- report: costs -->
<!-- end of report -->

<!-- report: speed -->
<!-- end of report -->

<!-- report: memory -->
<!-- end of report -->

## Learning curves

<!-- report: curves -->
<!-- end of report -->

Each run's config, result, command and versions: runs.jsonl.
"""
# What the notes below a table say, each where the table has what it is about.
SCORES_NOTE = (
    "Mean ± sample standard deviation over seeds; in brackets the number of seeds{}."
)
STEPS_NOTE = " and the steps of unfinished runs"
FLOOR_NOTE = "Floor: what a fixed rule reaches on these examples."
# By words of the cells that they explain.
DIFFERENCES_NOTES = {
    "chance": (
        "Mean difference over common seeds ± √(s² + e²): s is half the paired t "
        "interval of 95 % over the seeds, and e two binomial standard deviations of "
        "the difference over the test examples, which all seeds share. Where nothing "
        "differs, fewer than one comparison in twenty exceeds chance all the same."
    ),
    "test noise": (
        "Of one seed: ± two binomial standard deviations of the difference over the "
        "test examples; a difference beyond this test noise may still come from the "
        "seed."
    ),
    "of the seeds alone": (
        "Of losses, F1 and masked tokens the test noise is not known: ± is half the "
        "paired t interval of 95 % over the seeds, and nothing is judged."
    ),
    "(1)": "Without ±: one seed of a score whose test noise is not known.",
}
COSTS_NOTE = (
    "Training: without compilation and validation, on a machine that other work may "
    "have shared. Compiled: memory of the training step with its data."
)
EXACT_NOTE = "Exact by length: test examples with no more tokens than landmarks."
FIGURE_NOTE = (
    "Bars: the standard deviation over seeds; of one seed the binomial one. Grey line: "
    "the best score at each cost."
)
SPEED_NOTE = (
    "Other work may have slowed these runs down; scripts/benchmark.py measures alone."
)
LINE_LENGTH = 100


def write_report(
    folders: Iterable[Path], out: Path, compare_with: Sequence[str] = ()
) -> str:
    """Writes the report on all runs in and below some folders.

    The folder gets the records of the runs, the page with its pictures, and the scores
    as a table. Of a page that is there already the blocks are written anew.

    Args:
      folders: workdirs, folders of workdirs, or folders that have RUNS_FILE.
      out: the folder to write.
      compare_with: the attentions from which a new page shows differences, as in
        `tables.paired_table`.

    Returns:
      A sentence: how many runs are finished, and where the page is.

    Raises:
      ConfigError: if there is no run, if no run has an attention of `compare_with`, if
        a block of the page is wrong, or if `out` holds something else than a report, or
        the records of other runs.
    """
    records = read_records(folders)
    frame = make_frame(records)
    markdown.check_folder(out, RUNS_FILE)
    _check_no_record_is_lost(records, out)
    page = out / PAGE_FILE
    if not page.exists():
        references = f" from={','.join(compare_with)}" if compare_with else ""
        tasks = ", ".join(frame["task"].unique())
        text = NEW_PAGE.format(tasks=tasks, references=references)
    elif compare_with:
        raise ConfigError(
            f"--compare_with is for a new page; in {page}, write from="
            f"{','.join(compare_with)} into the line <!-- report: differences -->"
        )
    else:
        text = page.read_text("utf-8")
    text, figures = fill_blocks(text, records)

    out.mkdir(parents=True, exist_ok=True)
    write_records(records, out)
    for name, figure in figures.items():
        save_svg(figure, out / name)
    page.write_text(text, "utf-8")
    by_row = frame.groupby(["task", "metric", "label"], sort=False)["score"]
    by_row.agg(["mean", "std", "count"]).to_csv(out / SCORES_FILE)
    runs = frame.drop_duplicates("run")
    return f"{runs['finished'].sum()} of {len(runs)} runs finished; see {page}"


def _check_no_record_is_lost(records: Sequence[Record], out: Path) -> None:
    """Raises ConfigError if a report is there that has other runs, too.

    It may be the only place where their records are.
    """
    if not (out / RUNS_FILE).exists():
        return
    names = {record["run"] for record in read_records([out])}
    lost_names = sorted(names - {record["run"] for record in records})
    if lost_names:
        raise ConfigError(
            f"{out} has the records of {len(lost_names)} other runs, the first is "
            f"{lost_names[0]}: name {out} too, which keeps them, or delete their lines "
            f"in its {RUNS_FILE}"
        )


def fill_blocks(text: str, records: Sequence[Record]) -> tuple[str, dict[str, Figure]]:
    """Fills the blocks of a page.

    Returns:
      The page; and the figures that it shows, by the names of their files.

    Raises:
      ConfigError: for a block of another form, and one that no run belongs to.
    """
    figures: dict[str, Figure] = {}

    def fill(match: re.Match[str]) -> str:
        first_line = FIRST_LINE.format(match[1])
        try:
            lines = _make_block(match[1], records, figures)
        except ConfigError as error:
            raise ConfigError(f"{first_line}: {error}") from error
        return "\n".join([first_line, *lines, LAST_LINE])

    text, num_blocks = BLOCK.subn(fill, text)
    if num_blocks < len(re.findall("^<!-- report: ", text, re.MULTILINE)):
        raise ConfigError(f"a block <!-- report: … --> has no line {LAST_LINE}")
    return text, figures


class Block(NamedTuple):
    """The words of a block's first line.

    kind: a table in TABLES, or figures in FIGURES.
    runs: patterns of names with commas between.
    references: the attentions from which differences are shown.
    """

    kind: str
    runs: str
    references: tuple[str, ...]


def _parse_block(words: str) -> Block:
    """Parses the words, as in "costs runs=quick/*"."""
    kind, *options = words.split()
    values = {"runs": "*", "from": ""}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values:
            raise ConfigError(f"unknown option {key}; known: runs=, from=")
        values[key] = value
    references = tuple(filter(None, values["from"].split(",")))
    return Block(kind, values["runs"], references)


def _make_block(
    words: str, records: Sequence[Record], figures: dict[str, Figure]
) -> list[str]:
    """The lines of a block; its figures are added to `figures`."""
    block = _parse_block(words)
    patterns = block.runs.split(",")
    selected = [
        record
        for record in records
        if any(fnmatch.fnmatchcase(record["run"], pattern) for pattern in patterns)
    ]
    if not selected:
        raise ConfigError(f"no run has a name like {block.runs}")
    frame = make_frame(selected)

    if block.kind in TABLES:
        return TABLES[block.kind](frame, block.references)
    if block.kind in FIGURES:
        prefix = re.sub(r"\W+", "_", block.runs).strip("_")
        return _show_figures(frame, block.kind, prefix, figures)
    known = ", ".join([*TABLES, *FIGURES])
    raise ConfigError(f"unknown kind {block.kind}; known: {known}")


def _show_scores(frame: pd.DataFrame, _: Sequence[str]) -> list[str]:
    """The lines of the table of scores."""
    table = tables.score_table(frame)
    notes = [SCORES_NOTE.format("" if frame["finished"].all() else STEPS_NOTE)]
    if table["attention"].str.startswith("floor: ").any():
        notes.append(FLOOR_NOTE)
    return _add_notes(table, [*notes, describe(frame)])


def _show_differences(frame: pd.DataFrame, references: Sequence[str]) -> list[str]:
    """The lines of the table of differences from these attentions."""
    table = tables.paired_table(frame, references)
    cells = set(table.to_numpy().flat)
    notes = [
        note
        for words, note in DIFFERENCES_NOTES.items()
        if any(cell.endswith(words) for cell in cells)
    ]
    return _add_notes(table, notes)


def _show_costs(frame: pd.DataFrame, _: Sequence[str]) -> list[str]:
    """The lines of the table of costs."""
    table = tables.cost_table(frame)
    notes = [COSTS_NOTE]
    if tables.EXACT_BY_LENGTH in table:
        notes.append(EXACT_NOTE)
    return _add_notes(table, notes)


# By the kinds of blocks. Of these only the differences need the references.
TABLES = {
    "scores": _show_scores,
    "differences": _show_differences,
    "costs": _show_costs,
}


def _add_notes(table: pd.DataFrame, notes: Sequence[str]) -> list[str]:
    """The lines of a table in Markdown, with its notes below; none if it is empty."""
    if not len(table):
        return []
    lines = markdown.make_table(list(table), table.to_numpy())
    text = markdown.escape(" ".join(notes))
    return [*lines, "", *_wrap(text)]


def _wrap(text: str) -> list[str]:
    """The lines of a paragraph. No path or name is divided."""
    return textwrap.wrap(
        text, LINE_LENGTH, break_long_words=False, break_on_hyphens=False
    )


def _show_figures(
    frame: pd.DataFrame, kind: str, prefix: str, figures: dict[str, Figure]
) -> list[str]:
    """The lines that show the figures of a kind, which are added to `figures`."""
    lines = []
    for name, figure in draw_figures(frame, kind):
        file = "_".join(filter(None, [prefix, name])) + ".svg"
        figures[file] = figure
        lines.append(f"![{name.replace('_', ' ')}]({file})")
    if not lines or kind == "curves":
        return lines
    notes = [FIGURE_NOTE, SPEED_NOTE] if kind == "speed" else [FIGURE_NOTE]
    return [*lines, "", *_wrap(" ".join(notes))]


def describe(frame: pd.DataFrame) -> str:
    """Says how many runs are finished, what all share, and where they were made.

    Runs of several commits or devices are told apart in words: their numbers may differ
    for that reason alone.
    """
    runs = frame.drop_duplicates("run")
    finished = runs[runs["finished"]]
    sentences = [f"{len(finished)} of {len(runs)} runs are finished."]
    shared = _find_shared_settings(runs)
    if shared:
        sentences.append(f"All have {', '.join(shared)}.")
    sizes = finished["test_examples"].dropna().astype(int)
    if len(sizes):
        least, most = sizes.min(), sizes.max()
        numbers = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        sentences.append(f"Scores are of {numbers} test examples.")
    for name in ("commit", "device"):
        values = finished[name].map(_shorten).value_counts()
        if len(values) == 1:
            sentences.append(f"{name.capitalize()}: {values.index[0]}.")
        elif len(values) > 1:
            parts = []
            for value in values.index:
                runs_of_value = finished[finished[name].map(_shorten) == value]
                parts.append(f"{value} ({_count(runs_of_value)})")
            sentences.append(
                f"They are of {len(values)} {name}s, which alone may change numbers: "
                f"{'; '.join(parts)}."
            )
    return " ".join(sentences)


def _find_shared_settings(runs: pd.DataFrame) -> list[str]:
    """The preset and the command line's settings that are equal in all runs."""
    facts = []
    for settings, overrides in zip(runs["settings"], runs["overrides"], strict=True):
        facts_of_run = set()
        for key in {"preset", *overrides} - UNNAMED:
            if settings.get(key) is not None:
                facts_of_run.add(f"{key}={settings[key]}")
        facts.append(facts_of_run)
    return sorted(set.intersection(*facts))


def _shorten(text: str | None) -> str:
    """A commit of nine digits, with the + of uncommitted changes; a device as it is."""
    if text is None or pd.isna(text):  # pandas has NaN among strings
        return "unknown"
    return re.sub(r"\b([0-9a-f]{9})[0-9a-f]{31}\b", r"\1", text)


def _count(runs: pd.DataFrame) -> str:
    """How many runs there are, and of which attentions, as in "3: linear, nystrom"."""
    attentions = ", ".join(runs["attention"].unique())
    return f"{len(runs)}: {attentions}"
