"""A disk that is nearly full, as files of a limited size are."""

import contextlib
import resource


@contextlib.contextmanager
def full_disk():
    """While entered, whoever writes more than 50 kB to a file gets an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
