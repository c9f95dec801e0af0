"""A log gets plain lines, and only every few seconds."""

from lra_tasks import progress


def test_plain_lines_where_there_is_no_terminal(capsys, monkeypatch):
    now = iter([0.0, 1.0, 5.5, 6.0, 11.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    with progress.Progress("trees", 2003) as bar:
        for _ in range(4):
            bar.update(500)
    assert capsys.readouterr().err.splitlines() == [
        "trees: 1,000 of 2,003 (6 s)",
        "trees: 2,000 of 2,003 (11 s)",
    ]
