"""Runs on recall: several labelled tokens, one label, an attention of a user's own."""

import json

import numpy as np
import pytest

import nystromformer
from tests.commands import ROOT, refused
from tests.small import SMALL, result_of

FEW = (
    *SMALL,
    "--config.task.max_length=11",
    "--config.task.num_pairs=2",
    "--config.task.num_keys=3",
    "--config.task.num_values=3",
    "--config.train.batch_size=16",
    "--config.train.num_steps=80",
)
SEVERAL = "--config.task.num_queries=5"


def train(commands, workdir, words, *flags):
    config = f"--config={ROOT}/configs/recall.py:{words}"
    return commands.run("train.py", config, f"--workdir={workdir}", *FEW, *flags)


@pytest.mark.slow
def test_a_run_on_several_queries_is_evaluated_loaded_and_predicts(commands, tmp_path):
    workdir = tmp_path / "run"
    parts = "--config.train.grad_accum_steps=2"
    done = train(commands, workdir, "nystrom,quick", SEVERAL, parts)
    assert done.returncode == 0, done.stderr
    result = result_of(workdir)
    assert {*result["floors"]} == {"majority class", "most frequent value present"}
    assert (result["metric"], result["test_examples"]) == ("accuracy", 50)

    again = commands.run("evaluate.py", f"--workdir={workdir}", "--split=test")
    assert f"accuracy {result['test_accuracy']:.2%}" in again.stdout, again.stderr
    report = commands.run("report.py", str(workdir), f"--out={tmp_path}/out")
    assert report.returncode == 0, report.stderr
    assert "most frequent value present" in (tmp_path / "out/report.md").read_text()

    run = nystromformer.load_run(workdir)
    test = run.task.load("test", commands.folder / "data")
    found = run.predict(test.inputs)
    assert found.probabilities.shape == (50, 11, 3)
    is_label = test.labels >= 0
    accuracy = np.mean((found.classes == test.labels)[is_label])
    assert accuracy == pytest.approx(result["test_accuracy"], rel=1e-6)
    assert found.labels[0, -1] == f"v{found.classes[0, -1]}"
    texts = [run.task.decode(row) for row in test.inputs]
    np.testing.assert_array_equal(run.predict(texts).classes, found.classes)
    assert run.predict(np.zeros((0, 11), int)).classes.shape == (0, 11)


def test_an_attention_of_a_users_own_runs_on_one_query(commands, tmp_path):
    load = f"--load={ROOT}/examples/custom.py"
    few = [flag for flag in FEW if "num_landmarks" not in flag]
    config = f"--config={ROOT}/configs/recall.py:average,quick,one_query"
    workdir = f"--workdir={tmp_path}/run"
    done = commands.run("train.py", load, config, workdir, *few)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["objective"]["name"] == "classification"
    run = nystromformer.load_run(tmp_path / "run")
    test = run.task.load("test", commands.folder / "data")
    accuracy = np.mean(run.predict(test.inputs).classes == test.labels)
    assert accuracy == pytest.approx(result_of(tmp_path / "run")["test_accuracy"])


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--config.task.num_pairs=4", "num_pairs=4 must be at most num_keys=3"),
        ("--config.task.max_length=8", "need 9 tokens, over max_length=8"),
        ("--config.task.num_queries=1", 'take name="classification"'),
        ("--config.objective.name=classification", 'take objective.name="positions"'),
    ],
)
def test_what_does_not_fit_is_one_line_before_any_data(commands, tmp_path, flag, said):
    ours = commands.with_env(LRA_DATA_DIR=str(tmp_path / "data"))
    line = refused(train(ours, tmp_path / "run", "nystrom,quick", SEVERAL, flag))
    assert said in line
    assert not list(tmp_path.iterdir())
