"""The provenance of a number: command, commit, device, versions."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

VERSIONS_OF = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def device() -> str:
    kind = jax.devices()[0].device_kind
    cpu = f"CPU {platform.machine()}, {os.cpu_count()} cores"
    return cpu if kind == "cpu" else f"{jax.device_count()} × {kind}"


def commit() -> str | None:
    """The commit of this checkout, with + where files differ; None outside git."""
    # Its own .git: it is perhaps installed within another's repository.
    git = f"git -C {shlex.quote(str(Path(__file__).parents[2]))} --git-dir=.git"
    options = "--always --abbrev=40 --dirty=+ --exclude='*'"
    failed, text = subprocess.getstatusoutput(f"{git} describe {options}")
    return None if failed else text


def source() -> dict[str, Any]:
    """What numbers come from: the command line, as a shell takes it, and the rest."""
    versions = {name: importlib.metadata.version(name) for name in VERSIONS_OF}
    return {
        "command": shlex.join(["python", *sys.argv]),
        "commit": commit(),
        "device": device(),
        "versions": {"python": platform.python_version(), **versions},
    }
