"""The flags of XLA that commands start with."""

import importlib.util
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

FUSIONS = "xla_cpu_experimental_ynn_fusion_type"


def turn_off_cpu_fusions() -> None:
    """Adds the flag that turns off XLA's YNNPACK fusions on CPUs to XLA_FLAGS.

    With these fusions, jaxlib 0.10.2 computes wrong float32 numbers in silence: a
    matrix-vector product under `vmap` with a sum behind it, of more than 32,768 rows
    (https://github.com/jax-ml/jax/issues/39103). XLA reads its flags when JAX first
    computes something, so this must come before. Child processes inherit the flag.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = add_no_fusions_flag(flags, find_xla_libraries())


def add_no_fusions_flag(flags: str, libraries: Sequence[Path]) -> str:
    """Returns the text of XLA_FLAGS with the fusions off.

    All the user's flags stay, and the fusions as the user has set them. Nothing is
    added if a library does not know the flag: XLA would end the process without a
    traceback.

    Args:
      flags: the user's XLA_FLAGS: flags, or the path of a file with flags.
      libraries: the files that read XLA_FLAGS.
    """
    if os.path.isfile(flags):
        flags = Path(flags).read_text()
    if FUSIONS in flags:
        return flags
    if not all(knows_flag(library, FUSIONS) for library in libraries):
        return flags
    # An empty value names no kind of fusion: all are off.
    return f"{flags} --{FUSIONS}=".lstrip()


def find_xla_libraries() -> list[Path]:
    """Returns the libraries that read XLA_FLAGS: jaxlib's and its plugins'.

    None is imported. jaxlib's is on the list even if it is not where it was in all
    releases so far.
    """
    [jaxlib] = _find_folders("jaxlib")
    # macOS has another suffix.
    libraries = list(jaxlib.glob("libjax_common.*")) or [jaxlib / "libjax_common.so"]
    for folder in _find_folders("jax_plugins"):
        libraries.extend(folder.glob("*/*.so"))
    for folder in _find_folders("libtpu"):
        libraries.extend(folder.glob("libtpu.so"))
    return libraries


def _find_folders(package: str) -> list[Path]:
    """Returns the folders of a package; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or ()]


def knows_flag(library: Path, name: str) -> bool:
    """Returns whether a library has a flag, by looking for its name in the file.

    No list of versions could name later releases. The search takes 10 ms, as the name
    stands near the beginning, and half a second if it is not there.
    """
    if not library.exists():
        return False
    with (
        open(library, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        # XLA's table of flags has the name with a zero byte behind it. Without one it
        # is a field of XLA's options, which may outlive the flag.
        return content.find(f"{name}\0".encode()) >= 0
