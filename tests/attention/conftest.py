"""A worker gives back the memory of a module's compiled programs, about 2 MB each."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    yield
    jax.clear_caches()
