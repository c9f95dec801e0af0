"""A finished run evaluated again."""

import shutil

from tests.small import result_of


def test_evaluate_gives_the_numbers_of_a_run_that_has_moved(
    commands, finished, tmp_path
):
    workdir = shutil.copytree(finished[0], tmp_path / "moved")
    result = result_of(workdir)
    test = commands.run("evaluate.py", f"--workdir={workdir}")
    expected = f"accuracy {result['test_accuracy']:.2%}, loss {result['test_loss']:.4f}"
    assert f"test {expected}, 50 examples" in test.stdout, test.stderr
    done = commands.run("evaluate.py", f"--workdir={workdir}", "--split=validation")
    accuracy = f"accuracy {result['validation_accuracy']:.2%}"
    assert f"validation {accuracy}" in done.stdout, done.stderr
