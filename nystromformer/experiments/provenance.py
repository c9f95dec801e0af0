"""The provenance of a number: device, versions, commit."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import jax

VERSIONS_OF = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def note_session(sessions: list[dict[str, Any]], step: int) -> list[str]:
    """Appends this session, which begins at `step`, if it differs from the last one.

    Returns:
      The differences, as in "jax 0.10.3 instead of 0.10.2".
    """
    now = {"device": device(), "versions": versions(), "commit": commit()}
    before = sessions[-1] if sessions else {}
    if before and {"step": before["step"], **now} == before:
        return []
    sessions.append({"step": step, **now})
    ours, theirs = ({**x, **x.get("versions", {})} for x in (now, before))
    return [
        f"{name} {ours.get(name)} instead of {theirs[name]}"
        for name in theirs
        if name not in ("step", "versions") and ours.get(name) != theirs[name]
    ]


def device() -> str:
    """The device that the run computes on."""
    kind = jax.devices()[0].device_kind
    if kind == "cpu":
        return f"CPU {platform.machine()}, {os.cpu_count()} cores"
    return f"{jax.device_count()} × {kind}"


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that affect the numbers."""
    found = {name: importlib.metadata.version(name) for name in VERSIONS_OF}
    return {"python": platform.python_version(), **found}


def commit() -> str | None:
    """The commit of this checkout, with + where files differ; None outside git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # installed, perhaps within another's repository
        return None
    describe = ("describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*")
    command = ["git", "-C", str(root), *describe]
    try:
        described = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # a machine without git
        return None
    return described.stdout.strip() or None
