"""The provenance of numbers: command, commit, device, cores and versions."""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).parents[2]
# In a word of a command line: all of it, or the value of a flag.
ABSOLUTE_PATH = re.compile(r"(?:(?<==)|^)/.*", re.DOTALL)
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def collect() -> dict[str, Any]:
    """Collects where the numbers of this process come from.

    Returns:
      command: the command line, as `command` returns it.
      commit: the commit of this checkout, as `commit` returns it.
      device: what computes, as `device` returns it.
      versions: those of Python and the libraries, and the flags of XLA, which change
        numbers as a different release does.
    """
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        versions[library] = importlib.metadata.version(library)
    versions["XLA_FLAGS"] = os.environ.get("XLA_FLAGS") or "none"
    return {
        "command": command(),
        "commit": commit(),
        "device": device(),
        "versions": versions,
    }


def command() -> str:
    """Returns the command line, as a shell takes it.

    What lies in this repository is named from its root, and not from the folders of the
    machine, since others read the record.
    """
    script, *arguments = sys.argv
    path = Path(script).resolve()
    if path.is_relative_to(ROOT):
        script = str(path.relative_to(ROOT))
    arguments = [argument.replace(f"{ROOT}/", "") for argument in arguments]
    return shlex.join(["python", script, *arguments])


def hide_folders(command: str) -> str:
    """Leaves of each absolute path in a command line its name alone.

    Args:
      command: a command line, as `command` returns it.
    """
    words = shlex.split(command)
    return shlex.join(
        [ABSOLUTE_PATH.sub(lambda match: Path(match[0]).name, word) for word in words]
    )


def device() -> str:
    """Returns what computes, as in "CPU x86_64, 2 cores" or "8 × NVIDIA H200"."""
    kind = jax.devices()[0].device_kind
    if kind == "cpu":
        count = num_cores()
        return f"CPU {platform.machine()}, {count} core{'s' if count > 1 else ''}"
    return f"{jax.device_count()} × {kind}"


def num_cores() -> int:
    """Returns the number of cores that this process may use.

    Where the system does not say which these are, it is the number of all.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit() -> str | None:
    """Returns the commit of this checkout, with + where files differ.

    None outside git.
    """
    # --git-dir: the package may be installed within the repository of another project.
    git = ["git", "-C", str(ROOT), "--git-dir=.git"]
    describe = ["describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run([*git, *describe], capture_output=True, text=True)
    except OSError:  # There is no git.
        return None
    return None if done.returncode else done.stdout.strip()
