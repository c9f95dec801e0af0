"""Progress in a log file: a line now and then, with metrics and the time left."""

from nystromformer.training import progress as progress_module
from nystromformer.training.progress import Pace, Progress


def test_without_a_terminal_a_plain_line_every_few_seconds(capsys, monkeypatch):
    progress = Progress(step=10, num_steps=30)
    progress.update(11, {"loss": 0.25}, 1234.5)
    assert capsys.readouterr().out == "compiling the training step…\n"
    monkeypatch.setattr(Progress, "SECONDS_BETWEEN_LINES", 0.0)
    progress.started -= 2.0  # two seconds for one step, eighteen to go
    progress.update(12, {"loss": 0.25}, 1234.5)
    progress.close()
    line = capsys.readouterr().out
    assert line.startswith("step 12/30  loss 0.25  1,234 examples/s  36 s left")


def test_what_is_said_stands_on_its_own_line(capsys):
    progress = Progress(0, 3)
    progress.say("validated")
    progress.close()
    assert capsys.readouterr().out == "compiling the training step…\nvalidated\n"


def test_the_pace_is_a_second_once_the_program_is_compiled(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    pace = Pace(largest=64)
    sizes = []
    for seconds in (20.0, 0.1, 1.0, 20.0, 1e-9):
        with pace.measure(pace.size):
            now[0] += seconds
        sizes.append(pace.size)
    assert sizes == [1, 10, 10, 1, 64]
