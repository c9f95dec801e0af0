"""Pages of numbers in Markdown, headed by command, commit, device and versions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.config import ConfigError


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table of text; all columns but the first are right-aligned."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [[escape(cell) for cell in row] for row in (header, *rows)]
    return [f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])]


def escape(text: str) -> str:
    """One line of text without Markdown's markup."""
    return " ".join(re.sub(r"([\\`*_\[\]<>|])", r"\\\1", text).split())


def page(title: str, made_by: Mapping[str, Any], lines: Iterable[str]) -> str:
    """A page: the title, where its numbers come from, and the lines."""
    found = {**made_by, "command": f"`{made_by['command']}`"}
    found["versions"] = ", ".join(f"{k} {v}" for k, v in made_by["versions"].items())
    head = [f"- {name.capitalize()}: {text}" for name, text in found.items()]
    return "\n".join([f"# {title}\n", *head, "", *lines]).rstrip() + "\n"


def open_folder(out: Path, own_file: str) -> Path:
    """Makes a page's folder; ConfigError unless it is new, empty or has that file."""
    if out.exists() and any(out.iterdir()) and not (out / own_file).exists():
        raise ConfigError(f"--out={out} is not empty and not ours: name another folder")
    out.mkdir(parents=True, exist_ok=True)
    return out
