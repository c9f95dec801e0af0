"""Compiled programs that are kept for the next start of a command."""

import os

import jax

FOLDER = "~/.cache/nystromformer"
MAX_BYTES = 2**30


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in ~/.cache/nystromformer, up to a gigabyte.

    JAX_COMPILATION_CACHE_DIR names a different folder, whose size is the user's matter.
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off.
    """
    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(FOLDER))
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
