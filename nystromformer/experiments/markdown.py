"""Tables in Markdown."""

import re
from collections.abc import Iterable, Sequence


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """The lines of a table of text; all but the `left` first columns stand right."""
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]


def escape(text: str) -> str:
    """Escapes one line of text for Markdown."""
    return " ".join(re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text).split())
