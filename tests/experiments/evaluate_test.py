"""A finished run evaluated again."""

import json
import shutil

from tests.commands import refused
from tests.small import result_of


def test_evaluate_of_a_moved_run_gives_its_numbers_and_rejects_other_data(
    commands, finished, tmp_path
):
    shutil.copytree(finished[0], tmp_path / "moved")
    workdir = f"--workdir={tmp_path}/moved"
    result = result_of(tmp_path / "moved")
    test = commands.run("evaluate.py", workdir, "--split=test")
    expected = f"accuracy {result['test_accuracy']:.2%}, loss {result['test_loss']:.4f}"
    assert f"test {expected}, 50 examples" in test.stdout, test.stderr

    done = commands.run("evaluate.py", workdir, "--split=validation")
    accuracy = f"accuracy {result['validation_accuracy']:.2%}"
    assert f"validation {accuracy}" in done.stdout, done.stderr

    other = {**result, "data_sha256": {"test": "0" * 64}}
    (tmp_path / "moved" / "result.json").write_text(json.dumps(other))
    said = refused(commands.run("evaluate.py", workdir))
    assert said.startswith("error: the test split is not the one that this")
