"""The page of a report: a README whose blocks are written from the runs beside it.

A block of a page is what stands between these two lines:

    <!-- report: differences runs=quick/* from=softmax,identity -->
    <!-- end of report -->

The report writes a table or pictures there and leaves the rest of the page alone.
`runs` selects runs by patterns of their names, all by default; `from` names the
attentions from which differences are shown.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown
from nystromformer.experiments.plotting import save_svg
from nystromformer.experiments.report.blocks import format_notes, make_block
from nystromformer.experiments.report.records import (
    RUNS_FILE,
    Record,
    read_records,
    write_records,
)
from nystromformer.experiments.report.runs import count_finished, make_frame
from nystromformer.run_files import write_text

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
      A sentence: how many runs are finished or failed, and where the page is.

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
        text = _read_page(page)
    text, figures = fill_blocks(text, records)

    out.mkdir(parents=True, exist_ok=True)
    write_records(records, out)
    for name, figure in figures.items():
        save_svg(figure, out / name)
    write_text(page, text)
    by_row = frame.groupby(["task", "metric", "label"], sort=False)["score"]
    by_row.agg(["mean", "std", "count"]).to_csv(out / SCORES_FILE)
    return f"{count_finished(frame)}; see {page}"


def _read_page(page: Path) -> str:
    """The text of a page, which a person may have saved in another encoding."""
    try:
        return page.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{page} is not UTF-8 text ({error.reason}): save it as UTF-8"
        ) from None


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
    """Fills the blocks of a page, which says each note once, below the first.

    Returns:
      The page; and the figures that it shows, by the names of their files.

    Raises:
      ConfigError: for a block of another form, and one that no run belongs to.
    """
    figures: dict[str, Figure] = {}
    said: set[str] = set()

    def fill(match: re.Match[str]) -> str:
        first_line = FIRST_LINE.format(match[1])
        try:
            block = make_block(match[1], records)
        except ConfigError as error:
            raise ConfigError(f"{first_line}: {error}") from error
        figures.update(block.figures)
        notes = [note for note in block.notes if note not in said]
        said.update(notes)
        lines = [first_line, *block.lines]
        if notes:
            lines.extend(["", *format_notes(notes)])
        return "\n".join([*lines, LAST_LINE])

    text, num_blocks = BLOCK.subn(fill, text)
    if num_blocks < len(re.findall("^<!-- report: ", text, re.MULTILINE)):
        raise ConfigError(f"a block <!-- report: … --> has no line {LAST_LINE}")
    return text, figures
