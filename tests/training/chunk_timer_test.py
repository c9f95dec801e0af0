"""A chunk takes about a second."""

from nystromformer.training import chunk_timer
from nystromformer.training.chunk_timer import ChunkTimer


def test_chunk_timer_aims_at_a_second_once_the_program_is_compiled(monkeypatch):
    clock = 0.0
    monkeypatch.setattr(chunk_timer.time, "monotonic", lambda: clock)
    timer = ChunkTimer()
    sizes = []
    for seconds in (20.0, 0.1, 1.0, 20.0, 1e-9):
        with timer.measure(timer.size):
            clock += seconds
        sizes.append(timer.size)
    assert sizes == [1, 10, 10, 1, 64]

    # A chunk that ends early, as at a checkpoint, has its own number of batches.
    with timer.measure(6):
        clock += 0.5
    assert timer.size == 12
