"""Compiled programs kept on disk, so that a second start need not compile again."""

import hashlib
import platform
from pathlib import Path

import jax

MAX_BYTES = 2**30


def keep_compiled_programs() -> None:
    """Lets JAX keep what it compiles, up to a gigabyte, in ~/.cache/nystromformer.

    JAX_COMPILATION_CACHE_DIR names another folder; JAX_ENABLE_COMPILATION_CACHE=false
    switches it off.
    """
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    folder = Path("~/.cache/nystromformer").expanduser() / _processor()
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)


def _processor() -> str:
    """A name for what the CPU can do, which JAX leaves out of its own key.

    In a home shared by several machines a program for one may crash the other.
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(f"{platform.processor()} {features}".encode())
    return f"{platform.machine()}-{digest.hexdigest()[:8]}"
