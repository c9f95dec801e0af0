"""Tables in Markdown, as every tool of the workshop writes them."""

from collections.abc import Iterable, Sequence

MARKUP = "\\`*_[]<>|"


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """The lines of a table; cells are text, and what Markdown reads is escaped.

    Args:
      header: the names of the columns.
      rows: of as many cells.
      left: how many columns, from the first, are aligned left; numbers stand right.
    """
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]


def escape(text: str) -> str:
    """One line of text that Markdown shows as it is."""
    for character in MARKUP:
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
