"""Strictness for every test: what numpy would broadcast in silence is an error."""

import hypothesis
import jax

jax.config.update("jax_numpy_rank_promotion", "raise")

# The same examples in every run; the first example compiles, so no deadline.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")
