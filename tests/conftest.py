"""Strictness for every test: what numpy would broadcast in silence is an error."""

import os
import shutil
import signal
from pathlib import Path

import jax
import jaxlib
import pytest
from filelock import FileLock

from tests.commands import ROOT, Commands

# Under nohup, or in a shell's background, signals are ignored that the tests send, and
# would be in all that they start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_platforms", os.environ.setdefault("JAX_PLATFORMS", "cpu"))
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling takes most of the time of small tests; each of these shortens it. Programs
# are kept for other workers and the next run.
PROGRAMS = ROOT / ".pytest_cache" / "programs"
worker = "PYTEST_XDIST_WORKER" in os.environ
if not worker and sum(x.stat().st_size for x in PROGRAMS.glob("*")) > 2**30:
    shutil.rmtree(PROGRAMS)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_compilation_cache_dir", str(PROGRAMS))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
# Here XLA's fusions on CPUs stay on, as in programs of a user; commands turn them off.
FLAGS = os.environ.get("XLA_FLAGS", "")
# XLA ends a process that gives it an unknown flag; later releases do not know this one.
if jaxlib.__version__ in ("0.10.2", "0.11.0"):
    FLAGS += " --xla_cpu_use_fusion_emitters=false"
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("XLA_FLAGS", FLAGS)
    jax.local_devices()  # XLA reads its flags once


def pytest_configure(config):
    """Without slow tests also what the tests start compiles so; with them, as ever."""
    if "not slow" in config.option.markexpr:
        os.environ.update(JAX_DISABLE_MOST_OPTIMIZATIONS="1", XLA_FLAGS=FLAGS)


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """A worker gives back the memory of a module's programs, about 2 MB each."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def commands(tmp_path_factory) -> Commands:
    """The scripts, in a folder of this worker."""
    return Commands(tmp_path_factory.mktemp("commands"), PROGRAMS)


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> tuple[Path, str]:
    """The workdir of a run that nothing interrupted, and what it printed."""
    folder = tmp_path_factory.getbasetemp()
    if worker:
        folder = folder.parent  # that of all workers, the first of which trains
    printed = folder / "finished.txt"
    with FileLock(folder / "finished.lock"):
        if not printed.exists():
            done = Commands(folder, PROGRAMS).train(folder / "finished")
            assert done.returncode == 0, done.stderr
            printed.write_text(done.stdout)
    return folder / "finished", printed.read_text()
