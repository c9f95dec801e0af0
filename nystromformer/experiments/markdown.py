"""Pages in Markdown: tables, escaped text, and where the numbers come from."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.errors import ConfigError

DASH = "—"  # in a cell: nothing to say


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns the lines of a table of text.

    All columns but the first are right-aligned.
    """
    alignment = ["---"] + ["---:"] * (len(header) - 1)
    lines = [_table_line(map(escape, header)), _table_line(alignment)]
    lines.extend(_table_line(map(escape, row)) for row in rows)
    return lines


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escape(text: str) -> str:
    """Returns one line of text that Markdown shows as it is."""
    return " ".join(re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text).split())


def make_page(title: str, made_by: Mapping[str, Any], lines: Iterable[str]) -> str:
    """Returns a page: the title, where its numbers come from, and the lines.

    Args:
      title: the title of the page.
      made_by: command, commit, device and versions, as in `provenance.collect`.
      lines: the rest of the page, in Markdown.
    """
    head = format_origin(made_by)
    return "\n".join([f"# {title}\n", *head, "", *lines]).rstrip() + "\n"


def format_origin(made_by: Mapping[str, Any]) -> list[str]:
    """Returns the lines that say where numbers come from, as in `make_page`."""
    facts = dict(made_by)
    facts["command"] = f"`{made_by['command']}`"
    facts["versions"] = ", ".join(
        f"{library} {version}" for library, version in made_by["versions"].items()
    )
    return [f"- {name.capitalize()}: {text}" for name, text in facts.items()]


def check_folder(out: Path, own_file: str) -> None:
    """Checks that a page may be written to a folder, which need not exist.

    Args:
      out: the folder.
      own_file: a file that every such page has, by which an earlier one is known.

    Raises:
      ConfigError: if the folder has other files.
    """
    if out.exists() and any(out.iterdir()) and not (out / own_file).exists():
        raise ConfigError(
            f"--out={out} contains files of something else; name a new or empty folder"
        )
