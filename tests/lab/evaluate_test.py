"""A finished run evaluated again, and what is no run."""

import json
import shutil

import pytest

from nystromformer.lab.workdir import read_result, write_result


def test_a_finished_run_gives_the_same_number_again(commands, finished):
    workdir, _ = finished
    result = json.loads((workdir / "result.json").read_text())
    done = commands.run("evaluate.py", f"--workdir={workdir}", "--split=test")
    assert done.returncode == 0, done.stderr
    assert f"test accuracy {result['test_accuracy']:.2%}" in done.stdout
    assert f"loss {result['test_loss']:.4f}, 50 examples" in done.stdout


def test_a_moved_run_is_evaluated_where_it_is(commands, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "moved")
    args = (f"--workdir={tmp_path}/moved", "--split=validation")
    done = commands.run("evaluate.py", *args)
    result = json.loads((finished[0] / "result.json").read_text())
    assert f"accuracy {result['validation_accuracy']:.2%}" in done.stdout


def break_result(workdir):
    write_result(workdir, {**read_result(workdir), "params_sha256": "0" * 64})


def break_data(workdir):
    data = {"test": "0" * 64}
    write_result(workdir, {**read_result(workdir), "data_sha256": data})


BROKEN = {
    "no config": (
        lambda w: (w / "config.json").unlink(),
        "is no run: it has no config",
    ),
    "no json": (lambda w: (w / "config.json").write_text("{"), "is not valid JSON"),
    "no checkpoints": (
        lambda w: shutil.rmtree(w / "checkpoints"),
        "no checkpoints yet",
    ),
    "no result": (lambda w: (w / "result.json").write_text("{}"), "is no result of"),
    "other data": (break_data, "the test split here is not the one that this run"),
    "other weights": (break_result, "are not those of its result.json"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_no_whole_run_is_one_line(commands, finished, tmp_path, case):
    damage, message = BROKEN[case]
    shutil.copytree(finished[0], tmp_path / "run")
    damage(tmp_path / "run")
    done = commands.run("evaluate.py", f"--workdir={tmp_path}/run")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
