"""What every test gets: strict broadcasting, kept programs and shared fixtures."""

import ctypes
import gc
import os
import shutil
import signal
from pathlib import Path

import jax
import jaxlib
import pytest
from filelock import FileLock

from nystromformer.experiments.provenance import num_cores
from tests.commands import ROOT, Commands

# A process under nohup, or in a shell's background, ignores these signals, and so do
# its children. The tests send them, so that the defaults are restored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_platforms", os.environ.setdefault("JAX_PLATFORMS", "cpu"))
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling takes most of the time of small tests; each of these options shortens it.
# Programs are kept for other workers and the next run.
PROGRAMS = ROOT / ".pytest_cache" / "programs"
MAX_BYTES_OF_PROGRAMS = 2**30
BYTES_PER_WORKER = 5 * 2**29
LIBC = ctypes.CDLL(None)
is_worker = "PYTEST_XDIST_WORKER" in os.environ
num_bytes = sum(path.stat().st_size for path in PROGRAMS.glob("*"))
if num_bytes > MAX_BYTES_OF_PROGRAMS and not is_worker:
    shutil.rmtree(PROGRAMS)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(PROGRAMS))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
FLAGS = os.environ.get("XLA_FLAGS", "")
# Without these emitters XLA compiles faster. The fusions that the scripts turn off are
# another flag: here they stay on, as in a user's own program.
NO_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
# XLA cuts a program into parts, so that many threads compile it. Here is a process for
# each core, and the whole takes less time.
NOT_IN_PARTS = "--xla_cpu_parallel_codegen_split_count=1"
# XLA ends a process for an unknown flag, so that only the releases known to have one
# get it. A worker has inherited them.
if jaxlib.__version__ in ("0.10.2", "0.11.0") and NO_EMITTERS not in FLAGS:
    FLAGS = f"{FLAGS} {NO_EMITTERS}".strip()
if jaxlib.__version__ == "0.10.2" and NOT_IN_PARTS not in FLAGS:
    FLAGS = f"{FLAGS} {NOT_IN_PARTS}"
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XLA_FLAGS", FLAGS)
    jax.local_devices()  # XLA reads its flags once


def pytest_configure(config):
    """Shortens compiling also in processes that tests start, but for `make test-all`.

    There these processes compile as they do for a user. A kept program is found by the
    text of XLA_FLAGS too, so that `make test` and a single file need the same text.
    """
    if config.option.markexpr != "not parity":
        os.environ.update(JAX_DISABLE_MOST_OPTIMIZATIONS="1", XLA_FLAGS=FLAGS)


def pytest_xdist_auto_num_workers() -> int:
    """Starts a worker a core, as long as there is memory for all.

    A worker grows to about 1.2 GB, and the commands that it starts need as much again.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    if limit.exists() and limit.read_text().strip().isdigit():
        memory = min(memory, int(limit.read_text()))
    return max(1, min(num_cores(), memory // BYTES_PER_WORKER))


def pytest_collection_finish():
    """Makes garbage collection rare, which took a sixth of the time of the tests.

    Tracing makes many objects that live on. Each collection went through them, and a
    full one through all of JAX and TensorFlow Datasets too, unless they are frozen.
    """
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Frees the memory of a module's programs, about 2 MB each, when it is done.

    glibc keeps what is freed for later, half a gigabyte of it, unless it is asked.
    """
    yield
    jax.clear_caches()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)


@pytest.fixture(scope="session")
def commands(tmp_path_factory) -> Commands:
    """The scripts, in a folder of this worker."""
    return Commands(tmp_path_factory.mktemp("commands"), PROGRAMS)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> tuple[Path, str]:
    """The workdir of a run that nothing interrupted, and what it printed.

    All workers share one run. The first that asks for it trains, and others wait.
    """
    folder = tmp_path_factory.getbasetemp()
    if is_worker:
        folder = folder.parent  # the folder of all workers
    workdir = folder / "finished"
    output = folder / "finished.txt"
    with FileLock(folder / "finished.lock"):
        if not output.exists():
            done = Commands(folder, PROGRAMS).train(workdir)
            assert done.returncode == 0, done.stderr
            output.write_text(done.stdout)
    return workdir, output.read_text()
