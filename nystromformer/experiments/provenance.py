"""The provenance of a number: device, versions, commit, command."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import jax

VERSIONS_OF = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def device() -> str:
    """The devices that the run computes on."""
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


def command() -> str:
    """The command line of this process, as a shell takes it."""
    return shlex.join(["python", *sys.argv])
