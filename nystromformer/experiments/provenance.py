"""The provenance of numbers: command, commit, device, versions; and pages of them."""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nystromformer.errors import ConfigError

VERSIONS_OF = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def num_cores() -> int:
    """The cores that this process may use, where the system says which."""
    affinity = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return len(affinity(0))


def device() -> str:
    kind = jax.devices()[0].device_kind
    cpu = f"CPU {platform.machine()}, {num_cores()} cores"
    return cpu if kind == "cpu" else f"{jax.device_count()} × {kind}"


def commit() -> str | None:
    """The commit of this checkout, with + where files differ; None outside git."""
    # Its own .git: it is perhaps installed within another's repository.
    git = f"git -C {shlex.quote(str(Path(__file__).parents[2]))} --git-dir=.git"
    options = "--always --abbrev=40 --dirty=+ --exclude='*'"
    failed, text = subprocess.getstatusoutput(f"{git} describe {options}")
    return None if failed else text


def source() -> dict[str, Any]:
    """What numbers come from: the command line, as a shell takes it, and the rest.

    Among the versions are the flags of XLA, which change numbers as a release does.
    """
    versions = {name: importlib.metadata.version(name) for name in VERSIONS_OF}
    versions["XLA_FLAGS"] = os.environ.get("XLA_FLAGS") or "none"
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "device": device(),
        "versions": {"python": platform.python_version(), **versions},
    }


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
