"""The blocks of a page: the table or the pictures that each kind of block shows."""

import fnmatch
import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown
from nystromformer.experiments.report import tables
from nystromformer.experiments.report.figures import FIGURES, draw_figures
from nystromformer.experiments.report.names import UNNAMED
from nystromformer.experiments.report.records import Record
from nystromformer.experiments.report.runs import (
    NOT_RECORDED,
    count_finished,
    make_frame,
)

# What the notes below a table say, each where the table has what it is about.
SCORES_NOTE = "Mean ± standard deviation over seeds; in brackets the number of seeds{}."
STEPS_NOTE = " and the steps of unfinished runs"
FLOOR_NOTE = "Floor: what a fixed rule reaches on the whole test split."
# By words of the cells that they explain.
DIFFERENCES_NOTES = {
    "chance": (
        "Mean difference over common seeds ± √(s² + e²): s is half the paired t "
        "interval of 95 % over the seeds, and e two standard deviations over the test "
        "examples, which all seeds share. Where nothing differs, fewer than one "
        "comparison in twenty exceeds chance all the same."
    ),
    "test noise": (
        "Of one seed ± is two standard deviations over the test examples: a "
        "difference beyond this test noise may still come from the seed."
    ),
    "of the seeds alone": (
        "Of losses, F1 and accuracies of tokens the test noise is not known: ± is half "
        "the paired t interval of 95 % over the seeds, and nothing is judged."
    ),
    "(1)": "Without ±: one seed of a score whose test noise is not known.",
}
COSTS_NOTE = (
    "Training: without compilation and validation, on a machine that other work may "
    "have shared. Compiled: memory of the training step with its data."
)
EXACT_NOTE = "Exact by length: test examples with no more tokens than landmarks."
COST_FIGURE_NOTE = (
    "Bars: the standard deviation over seeds; of one seed the binomial one. Grey line: "
    "the best score at each cost."
)
SPEED_FIGURE_NOTE = (
    "Other work may have slowed these runs down; scripts/benchmark.py measures alone."
)
FIGURE_NOTES = {
    "speed": [COST_FIGURE_NOTE, SPEED_FIGURE_NOTE],
    "memory": [COST_FIGURE_NOTE],
}
LINE_LENGTH = 100
# What computes no number of a run, so that its versions are not compared.
NOT_COMPUTING = ["python", "orbax-checkpoint"]


class Request(NamedTuple):
    """What the first line of a block asks for.

    kind: a key of KINDS.
    runs: patterns of names with commas between.
    references: the attentions from which differences are shown.
    """

    kind: str
    runs: str
    references: tuple[str, ...]


class Block(NamedTuple):
    """What a page shows between the first line and the last line of a block.

    lines: a table or pictures, in Markdown.
    figures: those that the lines show, by the names of their files.
    notes: what is said below them. A page says the same note once.
    """

    lines: list[str]
    figures: dict[str, Figure]
    notes: list[str]


def make_block(words: str, records: Sequence[Record]) -> Block:
    """Makes the block that the words of its first line ask for.

    Args:
      words: as in "differences runs=quick/* from=softmax".
      records: of all runs.

    Raises:
      ConfigError: for an unknown kind or option, and if no run belongs to the block.
    """
    request = _parse_request(words)
    patterns = request.runs.split(",")
    selected = [
        record
        for record in records
        if any(fnmatch.fnmatchcase(record["run"], pattern) for pattern in patterns)
    ]
    if not selected:
        raise ConfigError(f"no run has a name like {request.runs}")
    return KINDS[request.kind](make_frame(selected), request)


def _parse_request(words: str) -> Request:
    """Parses the words of a first line."""
    kind, *options = words.split()
    if kind not in KINDS:
        raise ConfigError(f"unknown kind {kind}; known: {', '.join(KINDS)}")
    values = {"runs": "*", "from": ""}
    for option in options:
        key, _, value = option.partition("=")
        if key not in values:
            raise ConfigError(f"unknown option {key}; known: runs=, from=")
        values[key] = value
    references = tuple(filter(None, values["from"].split(",")))
    return Request(kind, values["runs"], references)


def _show_scores(frame: pd.DataFrame, _: Request) -> Block:
    """The table of scores."""
    table = tables.score_table(frame)
    notes = [SCORES_NOTE.format("" if frame["finished"].all() else STEPS_NOTE)]
    if table["attention"].str.startswith("floor: ").any():
        notes.append(FLOOR_NOTE)
    return _with_notes(table, [*notes, describe(frame)])


def _show_differences(frame: pd.DataFrame, request: Request) -> Block:
    """The table of differences from these attentions."""
    table = tables.paired_table(frame, request.references)
    cells = set(table.to_numpy().flat)
    notes = [
        note
        for words, note in DIFFERENCES_NOTES.items()
        if any(cell.endswith(words) for cell in cells)
    ]
    return _with_notes(table, notes)


def _show_costs(frame: pd.DataFrame, _: Request) -> Block:
    """The table of costs."""
    table = tables.cost_table(frame)
    notes = [COSTS_NOTE]
    if tables.EXACT_BY_LENGTH in table:
        notes.append(EXACT_NOTE)
    return _with_notes(table, notes)


def _show_figures(frame: pd.DataFrame, request: Request) -> Block:
    """The pictures of a kind in FIGURES."""
    prefix = re.sub(r"\W+", "_", request.runs).strip("_")
    lines = []
    figures = {}
    for name, figure in draw_figures(frame, request.kind):
        file = "_".join(filter(None, [prefix, name])) + ".svg"
        figures[file] = figure
        lines.append(f"![{name.replace('_', ' ')}]({file})")
    notes = FIGURE_NOTES.get(request.kind, []) if lines else []
    return Block(lines, figures, notes)


KINDS = {
    "scores": _show_scores,
    "differences": _show_differences,
    "costs": _show_costs,
    **dict.fromkeys(FIGURES, _show_figures),
}


def _with_notes(table: pd.DataFrame, notes: list[str]) -> Block:
    """A table with its notes below; nothing if it is empty."""
    if not len(table):
        return Block([], {}, [])
    return Block(markdown.make_table(list(table), table.to_numpy()), {}, notes)


def format_notes(notes: Sequence[str]) -> list[str]:
    """Returns the lines of a paragraph, none without notes; no path is divided."""
    return textwrap.wrap(
        markdown.escape(" ".join(notes)),
        LINE_LENGTH,
        break_long_words=False,
        break_on_hyphens=False,
    )


def describe(frame: pd.DataFrame) -> str:
    """Says how many runs are finished, what all share, and where they were made.

    Runs of several commits, devices or versions are told apart in words: their numbers
    may differ for that reason alone.
    """
    runs = frame.drop_duplicates("run")
    sentences = [f"{count_finished(frame)}."]
    shared = _find_shared_settings(runs)
    if shared:
        sentences.append(f"All have {', '.join(shared)}.")
    sizes = frame["test_examples"].dropna().astype(int)
    if len(sizes):
        least, most = sizes.min(), sizes.max()
        numbers = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        sentences.append(f"Scores are of {numbers} test examples.")
    begun = runs[runs["finished"] | (runs["step"] > 0)]
    for name in ("commit", "device"):
        sentences.append(_describe_origins(begun[name], begun, name, f"{name}s"))
    versions = _name_different_versions(begun["versions"])
    sentences.append(_describe_origins(versions, begun, "versions", "sets of versions"))
    return " ".join(filter(None, sentences))


def _describe_origins(
    origins: pd.Series, runs: pd.DataFrame, name: str, plural: str
) -> str:
    """Says of which commits, devices or versions runs are; empty if none is named.

    Args:
      origins: the commit, device or versions of each run; empty for no sentence.
      runs: a row each, by the index of `origins`.
      name, plural: what an origin is called, as in "commit".
    """
    values = origins.map(_shorten)
    counts = values.value_counts()
    if counts.empty:
        return ""
    heading = name.capitalize()
    if len(counts) == 1:
        return f"{heading}: {counts.index[0]}."

    several_tasks = runs["task"].nunique() > 1
    parts = [
        f"{value} ({_count(runs[values == value], several_tasks)})"
        for value in sorted(counts.index, key=lambda value: value == NOT_RECORDED)
    ]
    list_of_all = "; ".join(parts)
    num_known = (counts.index != NOT_RECORDED).sum()
    if num_known == 1:
        return f"{heading}: {list_of_all}."
    return (
        f"The runs are of {num_known} {plural}, which alone may change numbers: "
        f"{list_of_all}."
    )


def _name_different_versions(versions: pd.Series) -> pd.Series:
    """The versions in which runs differ, as in "jax 0.11.2".

    It is empty if runs do not differ, or those whose versions are known do not.

    Args:
      versions: library -> version, of each run; empty where they are not known.
    """
    known = versions[versions.map(bool)]
    table = pd.DataFrame(known.tolist(), index=known.index).fillna(NOT_RECORDED)
    table = table.drop(columns=NOT_COMPUTING, errors="ignore")
    table = table.loc[:, table.nunique() > 1]
    if table.empty:
        return pd.Series(dtype=object)
    names = table.apply(
        lambda row: ", ".join(
            f"{library} {version}" for library, version in row.items()
        ),
        axis=1,
    )
    return names.reindex(versions.index, fill_value=NOT_RECORDED)


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


def _shorten(text: str) -> str:
    """A commit of nine digits, with the + of uncommitted changes; a device as it is."""
    return re.sub(r"\b([0-9a-f]{9})[0-9a-f]{31}\b", r"\1", text)


def _count(runs: pd.DataFrame, name_tasks: bool) -> str:
    """How many runs there are, and of what, as in "3 of image: linear, nystrom"."""
    of_tasks = f" of {_join(runs['task'])}" if name_tasks else ""
    return f"{len(runs)}{of_tasks}: {_join(runs['attention'])}"


def _join(names: pd.Series) -> str:
    """The names, each once."""
    return ", ".join(names.unique())
