"""Strictness for every test: what numpy would broadcast in silence is an error."""

import signal

import hypothesis
import jax

# Under nohup a hang-up is ignored, and so it would be in all that the tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Compiling takes most of the time of small tests; this halves it.
jax.config.update("jax_disable_most_optimizations", True)

# The same examples in every run; the first example compiles, so no deadline.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")
