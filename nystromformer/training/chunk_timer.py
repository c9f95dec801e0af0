"""The size of the next chunk, so that the host is asked about once a second."""

import contextlib
import time
from collections.abc import Iterator

from nystromformer.training.data import MAX_CHUNK
from nystromformer.training.devices import all_hosts_max

# Between two chunks the host looks at the clock, at signals and at the metrics.
SECONDS_PER_CHUNK = 1.0


class ChunkTimer:
    """Measures chunks, and chooses the size of the next one.

    Attributes:
      size: the number of batches of the next chunk, the same in every process. The
        first chunk has one, as its program may still have to be compiled.
      seconds: the duration of the last chunk; 0 before the first.
    """

    def __init__(self) -> None:
        self.size = 1
        self.seconds = 0.0

    @contextlib.contextmanager
    def measure(self, num_batches: int) -> Iterator[None]:
        """Measures the work on a chunk of num_batches, which is done inside."""
        is_first = self.seconds == 0
        start = time.monotonic()
        yield
        self.seconds = time.monotonic() - start
        if is_first:
            return  # its time may be that of the compiler
        size = round(SECONDS_PER_CHUNK / self.seconds * num_batches)
        self.size = all_hosts_max(min(max(size, 1), MAX_CHUNK))
