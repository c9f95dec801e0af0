"""A disk that is nearly full, as files of a limited size are."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(num_bytes: int = 50_000) -> Iterator[None]:
    """While entered, a write beyond `num_bytes` of a file raises an OSError."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
