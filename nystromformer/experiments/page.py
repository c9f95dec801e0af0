"""A page of results in Markdown, headed by command, commit, device and versions."""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nystromformer.config import ConfigError
from nystromformer.experiments.provenance import commit, device, versions

PAGE = "README.md"


def command() -> str:
    """The current command line."""
    return shlex.join(["python", f"scripts/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def source() -> dict[str, Any]:
    """Command, commit, device and versions; call this before the work begins."""
    made_by = {"commit": commit(), "device": device(), "versions": versions()}
    return {"command": command(), **made_by}


def open_folder(out: Path, title: str) -> Path:
    """Makes the folder of a page, or reuses that of an earlier page of the same title.

    A new folder gets the page's first lines at once, so that it is recognised after a
    kill.

    Raises:
      ConfigError: the folder is not empty and was not made by this program.
      OSError: it cannot be made.
    """
    head = f"# {title}\n\n- Command: `"
    if not made_here(out, PAGE, re.escape(head) + "python scripts/"):
        out.mkdir(parents=True, exist_ok=True)
        (out / PAGE).write_text(f"{head}{command()}`\n\nNot finished.\n", "utf-8")
    return out


def made_here(out: Path, page: str, first_lines: str) -> bool:
    """Whether `out` holds a page that begins with this pattern; False: new or empty.

    Raises:
      ConfigError: it is a file, or a folder that holds something else.
    """
    if out.is_file():
        raise ConfigError(f"--out={out} is a file: name a folder")
    if not out.exists() or not any(out.iterdir()):
        return False
    file = out / page
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    if not re.match(first_lines, text):
        raise ConfigError(
            f"--out={out} is not empty and was not made by this command: name another "
            "folder"
        )
    return True


def page(title: str, made_by: Mapping[str, Any], lines: Iterable[str]) -> str:
    """The text of a page: title, source, lines."""
    found = ", ".join(f"{name} {x}" for name, x in made_by["versions"].items())
    head = [
        f"# {title}\n",
        f"- Command: `{made_by['command']}`",
        f"- Commit: {made_by['commit']}",
        f"- Device: {made_by['device']}",
        f"- Versions: {found}\n",
    ]
    return "\n".join([*head, *lines]).rstrip() + "\n"
