"""The flags of XLA that commands start with."""

import importlib.metadata
import os
from pathlib import Path

FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"

# XLA ends a process without a traceback for a flag that it does not know. The binaries
# of these releases, those for GPUs and TPUs too, were searched for the flag's name.
JAXLIBS_WITH_FUSIONS = ("0.10.2", "0.11.0", "0.11.1", "0.11.2")


def turn_off_cpu_fusions() -> None:
    """Adds the flag that turns off XLA's YNNPACK fusions on CPUs to XLA_FLAGS.

    With these fusions, jaxlib 0.10.2 computes wrong float32 numbers in silence: a
    matrix-vector product under `vmap` with a sum behind it, of more than 32,768 rows
    (https://github.com/jax-ml/jax/issues/39103). XLA reads its flags when JAX first
    computes something, so this must come before. Child processes inherit the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    jaxlib_version = importlib.metadata.version("jaxlib")
    os.environ["XLA_FLAGS"] = add_no_fusions_flag(flags, jaxlib_version)


def add_no_fusions_flag(flags: str, jaxlib_version: str) -> str:
    """Returns the text of XLA_FLAGS with the fusions off.

    All the user's flags stay, and the fusions as the user has set them. Nothing is
    added for a jaxlib that may not know the flag.

    Args:
      flags: the user's XLA_FLAGS: flags, or the path of a file with flags.
      jaxlib_version: the version of jaxlib, as in "0.10.2".
    """
    if os.path.isfile(flags):
        flags = Path(flags).read_text()
    if FUSIONS in flags or jaxlib_version not in JAXLIBS_WITH_FUSIONS:
        return flags
    # An empty value names no kind of fusion: all are off.
    return f"{flags} {FUSIONS}=".lstrip()
