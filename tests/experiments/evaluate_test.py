"""A finished run evaluated again."""

import json
import shutil

from nystromformer.experiments.workdir import read_result, write_result
from tests.commands import refused

OLDEST = {  # the keys that every version has written
    *("task", "attention", "seed", "best_step", "validation_accuracy"),
    *("test_accuracy", "test_examples", "floors", "params_sha256"),
}


def test_a_moved_run_gives_the_same_numbers_and_notices_other_data(
    commands, finished, tmp_path
):
    shutil.copytree(finished[0], tmp_path / "moved")
    workdir = f"--workdir={tmp_path}/moved"
    result = read_result(tmp_path / "moved")
    test = commands.run("evaluate.py", workdir, "--split=test")
    expected = f"accuracy {result['test_accuracy']:.2%}, loss {result['test_loss']:.4f}"
    assert f"test {expected}, 50 examples" in test.stdout, test.stderr

    old = {key: x for key, x in result.items() if key in OLDEST}
    (tmp_path / "moved" / "result.json").write_text(json.dumps(old))
    done = commands.run("evaluate.py", workdir, "--split=validation")
    accuracy = f"accuracy {result['validation_accuracy']:.2%}"
    assert f"validation {accuracy}" in done.stdout, done.stderr

    write_result(tmp_path / "moved", {**result, "data_sha256": {"test": "0" * 64}})
    said = refused(commands.run("evaluate.py", workdir))
    assert said.startswith("error: the test split is not the one that this")
