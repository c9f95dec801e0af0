"""Runs on recall: of several queries, of one, and with an attention of a user's own."""

import json

import numpy as np
import pytest

import nystromformer
from tests.commands import ROOT, refused
from tests.small import SMALL, result_of

# Settings of a small run.
SETTINGS = (
    *SMALL,
    "--config.task.max_length=11",
    "--config.task.num_pairs=2",
    "--config.task.num_keys=3",
    "--config.task.num_values=3",
    "--config.train.batch_size=16",
    "--config.train.num_steps=40",
)
FIVE_QUERIES = "--config.task.num_queries=5"


def train(commands, workdir, arg, *flags):
    config = f"--config={ROOT}/configs/recall.py:{arg}"
    return commands.run("train.py", config, f"--workdir={workdir}", *SETTINGS, *flags)


@pytest.fixture(scope="module")
def workdir(commands, tmp_path_factory):
    """The folder of a run on five queries."""
    workdir = tmp_path_factory.mktemp("recall") / "run"
    accumulation = "--config.train.grad_accum_steps=2"
    done = train(commands, workdir, "nystrom,quick", FIVE_QUERIES, accumulation)
    assert done.returncode == 0, done.stderr
    return workdir


@pytest.mark.slow
def test_a_run_on_several_queries_is_evaluated_and_reported(
    commands, workdir, tmp_path
):
    result = result_of(workdir)
    assert result["metric"] == "accuracy"
    assert result["test_examples"] == 50
    floor_names = {"majority class", "most frequent value present"}
    assert set(result["floors"]) == floor_names

    done = commands.run("evaluate.py", f"--workdir={workdir}", "--split=test")
    assert f"accuracy {result['test_accuracy']:.2%}" in done.stdout, done.stderr

    done = commands.run("report.py", str(workdir), f"--out={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert "most frequent value present" in (tmp_path / "out/README.md").read_text()


@pytest.mark.slow
def test_a_run_on_several_queries_is_loaded_and_predicts(commands, workdir):
    run = nystromformer.load_run(workdir)
    test = run.task.load("test", commands.folder / "data")
    prediction = run.predict(test.inputs)
    assert prediction.probabilities.shape == (50, 11, 3)
    assert prediction.labels[0, -1] == f"v{prediction.classes[0, -1]}"

    is_label = test.labels >= 0
    accuracy = np.mean((prediction.classes == test.labels)[is_label])
    expected = result_of(workdir)["test_accuracy"]
    assert accuracy == pytest.approx(expected, rel=1e-6)

    texts = [run.task.decode(row) for row in test.inputs]
    np.testing.assert_array_equal(run.predict(texts).classes, prediction.classes)
    assert run.predict(np.zeros((0, 11), int)).classes.shape == (0, 11)


# custom_test runs what a user registers, and task_models_test makes the model.
@pytest.mark.slow
def test_an_attention_of_a_users_own_runs_on_one_query(commands, tmp_path):
    workdir = tmp_path / "run"
    settings = [flag for flag in SETTINGS if "num_landmarks" not in flag]
    done = commands.run(
        "train.py",
        f"--load={ROOT}/examples/custom.py",
        f"--config={ROOT}/configs/recall.py:average,quick,one_query",
        f"--workdir={workdir}",
        *settings,
    )
    assert done.returncode == 0, done.stderr
    config = json.loads((workdir / "config.json").read_text())
    assert config["objective"]["name"] == "classification"

    run = nystromformer.load_run(workdir)
    test = run.task.load("test", commands.folder / "data")
    accuracy = np.mean(run.predict(test.inputs).classes == test.labels)
    assert accuracy == pytest.approx(result_of(workdir)["test_accuracy"])


def test_what_does_not_fit_is_one_line_before_any_data(commands, tmp_path):
    """The other messages are those of the task and of the objective."""
    commands = commands.with_env(LRA_DATA_DIR=str(tmp_path / "data"))
    pairs = "--config.task.num_pairs=4"
    done = train(commands, tmp_path / "run", "nystrom,quick", FIVE_QUERIES, pairs)
    assert "num_pairs=4 must be at most num_keys=3" in refused(done)
    assert not list(tmp_path.iterdir())
