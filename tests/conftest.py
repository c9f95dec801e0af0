"""Strictness for every test: what numpy would broadcast in silence is an error."""

import os
import signal

import hypothesis
import jax
import pytest

# Under nohup, or in a shell's background, signals are ignored that the tests send, and
# would be in all that they start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling takes most of the time of small tests; each of these shortens it. What the
# tests start is compiled as ever.
jax.config.update("jax_disable_most_optimizations", True)
with pytest.MonkeyPatch.context() as patch:
    flags = os.environ.get("XLA_FLAGS", "")
    patch.setenv("XLA_FLAGS", f"{flags} --xla_cpu_use_fusion_emitters=false")
    jax.local_devices()  # XLA reads its flags once


@pytest.fixture
def optimised():
    """With the passes again, for what the compiler counts."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


# The same examples in every run; the first example compiles, so no deadline.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")
