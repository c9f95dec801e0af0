"""A page of results: Markdown, and on top of it where its numbers come from."""

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nystromformer.config import ConfigError
from nystromformer.lab.provenance import commit, device, versions

PAGE = "README.md"


def source() -> dict[str, Any]:
    """Command, commit, device and versions; to be taken before the work begins."""
    script = Path(sys.argv[0]).name
    return {
        "command": shlex.join(["python", f"scripts/{script}", *sys.argv[1:]]),
        "commit": commit(),
        "device": device(),
        "versions": versions(),
    }


def open_folder(out: Path, title: str) -> Path:
    """Makes the folder of a page, or takes the one of an earlier page of that title.

    Raises:
      ConfigError: there is another README.md.
      OSError: it cannot be made.
    """
    page = out / PAGE
    if page.exists() and not page.read_bytes().startswith(f"# {title}\n".encode()):
        raise ConfigError(f"{page} is another page: name another --out")
    out.mkdir(parents=True, exist_ok=True)
    return out


def page(title: str, made_by: Mapping[str, Any], lines: Iterable[str]) -> str:
    """The text of a page: title, source, lines."""
    found = ", ".join(
        f"{name} {version}" for name, version in made_by["versions"].items()
    )
    head = [
        f"# {title}\n",
        f"- Command: `{made_by['command']}`",
        f"- Commit: {made_by['commit']}",
        f"- Device: {made_by['device']}",
        f"- Versions: {found}\n",
    ]
    return "\n".join([*head, *lines]).rstrip() + "\n"
