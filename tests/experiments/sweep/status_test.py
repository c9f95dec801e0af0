"""The line that says where a sweep stands."""

import pytest

from nystromformer.experiments.sweep.status import all_done, fraction_done, state


def write_steps(workdir, text: str):
    workdir.mkdir(exist_ok=True)
    (workdir / "metrics.jsonl").write_text(text)


def test_a_folder_waits_until_it_is_done_or_has_failed(tmp_path, capsys):
    states = {"done": ["result", "failed"], "failed": ["failed"], "waiting": []}
    for name, files in states.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / f"{file}.json").write_text('{"error": "no data"}')
        assert state(tmp_path / name) == name
    assert all_done([tmp_path / "done"])
    assert capsys.readouterr().out == ""
    for name, said in (
        ("failed", "failed: no data\n"),
        ("waiting", "again to continue\n"),
    ):
        assert not all_done([tmp_path / "done", tmp_path / name])
        assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "fraction"),
    [
        ("", 0.0),
        ('{"step": 10}\n{"step": 20}\n{"ste', 0.5),  # after a kill
        ('{"step": 10}\nnonsense\n', 0.0),
        ('{"step": 5}\n' * 1000 + '{"step": 40}\n', 1.0),
    ],
)
def test_how_far_a_run_is_stands_in_its_last_whole_line(tmp_path, text, fraction):
    write_steps(tmp_path, text)
    assert fraction_done(tmp_path, 40) == fraction


def test_the_line_counts_and_tells_the_time_left(tmp_path, stub, status, capsys):
    points = [stub(name) for name in "abcde"]
    for name in ("a", "b"):
        write_steps(tmp_path / name, '{"step": 12000}\n')
    (tmp_path / "a" / "result.json").write_text("{}")
    line = status(points)
    line.show(running=[])
    assert capsys.readouterr().out == "1 done, 0 running, 0 failed, 4 waiting\n"

    (tmp_path / "b" / "result.json").write_text("{}")
    write_steps(tmp_path / "c", '{"step": 6000}\n')
    write_steps(tmp_path / "e", "")
    (tmp_path / "e" / "failed.json").write_text('{"error": "no data"}')
    line.started -= 600  # half a run in ten minutes, one and a half to go
    line.show(running=["c", "b"])  # b has not ended yet, but has its result
    shown = capsys.readouterr().out
    counts = "2 done, 1 running, 1 failed, 1 waiting; now c"
    assert shown.startswith(f"{counts}, about 0 h 3")
    line.show(running=["c", "b"])
    assert capsys.readouterr().out == ""  # nothing new
    line.shown_at -= 60
    line.show(running=["c", "b"])
    assert capsys.readouterr().out.startswith(counts)
