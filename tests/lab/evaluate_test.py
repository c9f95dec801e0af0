"""A finished run evaluated again."""

import json
import shutil

from nystromformer.lab.workdir import read_result, write_result

OLDEST = {  # the keys that every version has written
    *("task", "attention", "seed", "best_step", "validation_accuracy"),
    *("test_accuracy", "test_examples", "floors", "params_sha256"),
}


def test_a_moved_run_gives_the_same_numbers_again(commands, finished, tmp_path):
    workdir = tmp_path / "moved"
    shutil.copytree(finished[0], workdir)
    result = read_result(workdir)
    test = commands.run("evaluate.py", f"--workdir={workdir}", "--split=test")
    expected = f"accuracy {result['test_accuracy']:.2%}, loss {result['test_loss']:.4f}"
    assert f"test {expected}, 50 examples" in test.stdout, test.stderr
    old = {key: x for key, x in result.items() if key in OLDEST}
    (workdir / "result.json").write_text(json.dumps(old))
    validation = ("evaluate.py", f"--workdir={workdir}", "--split=validation")
    done = commands.run(*validation)
    accuracy = f"accuracy {result['validation_accuracy']:.2%}"
    assert f"validation {accuracy}" in done.stdout, done.stderr


def test_other_data_than_the_run_was_given_are_one_line(commands, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    data = {"test": "0" * 64}
    result = {**read_result(tmp_path / "run"), "data_sha256": data}
    write_result(tmp_path / "run", result)
    done = commands.run("evaluate.py", f"--workdir={tmp_path}/run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the test split here is not the one that this")
    assert done.stderr.count("\n") == 1
