"""What result.json and the summary say is what a run has done, split by split."""

import json
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from etils import epath
from flax import nnx

from lra_tasks.split import SPLITS, Split
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from nystromformer.experiments.report.tables import score_table
from nystromformer.experiments.run import run_training, summarize
from nystromformer.experiments.trained_run import load_run
from nystromformer.run_files import write_json
from nystromformer.training.checkpoint import save_weights, weights_sha256
from nystromformer.training.optimizer import make_optimizer
from tests.small import make_config, stopped_at_once, untrained
from tests.tolerance import TOLERANCE

# Sequences have 24 to 48 tokens, and most of them few: some are exact.
LANDMARKS = 26
SETTINGS = {
    "task__num_train": 64,
    "task__num_validation": 10,
    "task__num_test": 30,
    "task__seed": 4,
    "objective__f1": True,
    "model__num_layers": 1,
    "model__model_dim": 8,
    "model__mlp_dim": 8,
    "attention__num_landmarks": LANDMARKS,
    "attention__num_pinv_iters": 1,
    "optimizer__warmup_steps": 1,
    "train__batch_size": 8,
    "train__num_steps": 4,
    "train__eval_every": 2,
    "train__seed": 5,
}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A short run of ListOps, which begins with imported weights and is stopped once.

    Its folder, source, experiment, result, config.json and splits.
    """
    folder = tmp_path_factory.mktemp("result")
    source = untrained("nystrom,quick", **SETTINGS)
    save_weights(folder / "source" / "best", source.weights)
    write_json(folder / "source" / "config.json", source.config.to_mapping())
    settings = SETTINGS | {
        "task__data_dir": str(folder / "data"),
        "train__init_from": str(folder / "source"),
    }
    experiment = Experiment(make_config("nystrom,quick", **settings))
    with stopped_at_once():
        run_training(experiment, epath.Path(folder / "run"))
    shutil.rmtree(folder / "source")  # a run that has begun needs it no more
    result = run_training(experiment, epath.Path(folder / "run"))
    saved = json.loads((folder / "run" / "result.json").read_text())
    assert saved == json.loads(json.dumps(result))
    config = json.loads((folder / "run" / "config.json").read_text())
    assert (folder / "data" / "lra_listops").is_dir()
    load = experiment.task.load
    splits = {name: load(name, folder / "data") for name in SPLITS}
    return SimpleNamespace(
        folder=folder,
        source=source,
        experiment=experiment,
        result=result,
        config=config,
        splits=splits,
    )


def test_result_names_the_run(done):
    model = done.experiment.make_model(nnx.Rngs(0))
    params = jax.tree.leaves(nnx.state(model, nnx.Param))
    expected = {
        "task": "listops",
        "attention": "nystrom",
        "objective": "classification",
        "seed": 5,
        "num_params": sum(x.size for x in params),
        "steps": 4,
        "metric": "accuracy",
        "test_examples": 30,
        "processes": 1,
        "mesh": {"data": 1, "seq": 1},
    }
    assert {name: done.result[name] for name in expected} == expected
    assert done.config == json.loads(json.dumps(done.experiment.config.to_mapping()))


def test_result_has_the_data_of_each_split(done):
    hashes = {name: split.content_hash for name, split in done.splits.items()}
    assert done.result["data_sha256"] == hashes
    assert len(set(hashes.values())) == 3


def test_result_has_floors_fitted_on_train_and_scored_on_test(done):
    train = done.splits["train"]
    validation = done.splits["validation"]
    test = done.splits["test"]
    compute_floors = done.experiment.task.floors

    floors = done.result["floors"]

    assert floors == compute_floors(train, test)
    assert floors != compute_floors(train, train)
    assert floors != compute_floors(test, test)
    assert floors != compute_floors(test, train)
    assert floors != compute_floors(train, validation)


def test_result_has_the_f1_of_a_model_that_always_says_class_1(done):
    share = np.mean(done.splits["test"].labels == 1)
    assert done.result["other_floors"] == {
        "f1": {"class 1 always": pytest.approx(2 * share / (1 + share))}
    }


def test_result_has_the_share_of_exact_sequences_of_test(done):
    shares = {}
    for name, split in done.splits.items():
        shares[name] = np.mean(split.lengths <= LANDMARKS)
    assert done.result["fraction_exact"] == shares["test"]
    assert len(set(shares.values())) == 3


def test_result_says_where_its_numbers_come_from(done):
    result = done.result
    made_by = {
        "command": result["command"],
        "commit": result["commit"],
        "device": result["device"],
        "versions": result["versions"],
    }
    assert result["sessions"] == [{"step": 0, **made_by}, {"step": 1, **made_by}]
    assert result["command"]
    assert result["device"]
    assert result["versions"]
    assert result["init_from_sha256"] == weights_sha256(done.source.weights)


KEYS_OF_RESULT = {
    *("task", "attention", "objective", "seed", "num_params", "fraction_exact"),
    *("steps", "best_step", "metric", "validation_accuracy", "floors", "other_floors"),
    *("test_accuracy", "test_f1", "test_loss", "test_examples"),
    *("examples_per_second", "wall_seconds", "compiled_bytes", "processes", "mesh"),
    *("data_sha256", "params_sha256", "init_from_sha256", "sessions"),
    *("command", "commit", "device", "versions"),
}


def test_a_run_leaves_its_result_its_curves_and_what_was_tested(done, commands):
    assert done.result.keys() == KEYS_OF_RESULT
    workdir = done.folder / "run"
    files = {path.name for path in workdir.iterdir()}
    names = "config.json", "metrics.jsonl", "events", "best", "result.json", "lock"
    assert files == {*names}
    assert any(b"train.seed" in x.read_bytes() for x in (workdir / "events").iterdir())

    run = load_run(workdir)
    assert weights_sha256(run.weights) == done.result["params_sha256"]
    (done.folder / "data").rename(done.folder / "moved")
    try:
        metrics = run.evaluate("test", str(done.folder / "moved"))
        data_dir = f"--data_dir={done.folder}/moved"
        printed = commands.run("evaluate.py", f"--workdir={workdir}", data_dir)
    finally:
        assert not (done.folder / "data").exists()  # nothing has been prepared anew
        (done.folder / "moved").rename(done.folder / "data")
    assert metrics == {name: done.result[f"test_{name}"] for name in metrics}
    assert f"accuracy {metrics['accuracy']:.2%}" in printed.stdout, printed.stderr


def pairs_of_three_documents(num_pairs):
    """A split of pairs, each of two of three documents."""
    rng = np.random.default_rng(0)
    return Split(
        inputs=np.ones((3, 32), np.uint8),
        lengths=np.full(3, 32, np.int32),
        labels=np.zeros(num_pairs, np.int32),
        pairs=rng.integers(0, 3, (num_pairs, 2)).astype(np.int32),
    )


def last_update(optimizer, num_steps):
    """The update of the last of some steps with the gradient 1."""
    state = optimizer.init(np.ones(1))
    for _ in range(num_steps):
        update, state = optimizer.update(np.ones(1), state, np.ones(1))
    return float(update[0])


@pytest.mark.parametrize(("num_epochs", "num_steps"), [(1.0, 3), (2.5, 8)])
def test_an_epoch_of_pairs_has_as_many_steps_as_pairs_fill(num_epochs, num_steps):
    """The learning rate decays over these steps."""
    split = pairs_of_three_documents(num_pairs=24)
    config = make_config(
        "identity,quick",
        "retrieval",
        task__max_length=32,
        optimizer__warmup_steps=1,
        train__batch_size=8,
        train__num_epochs=num_epochs,
        train__num_steps=0,
    )

    experiment = Experiment(config).with_num_steps(split.num_examples)

    assert experiment.config.train.num_steps == num_steps
    optimizer = experiment.make_programs().optimizer
    expected = make_optimizer(config.optimizer, num_steps)
    assert last_update(optimizer, num_steps) == pytest.approx(
        last_update(expected, num_steps), rel=TOLERANCE["same"]
    )


def test_summarize_has_the_metrics_of_the_result_beside_their_floors():
    result = {
        "task": "glue",
        "attention": "nystrom",
        "seed": 7,
        "metric": "f1",
        "best_step": 1_200,
        "validation_f1": 0.5,
        "test_f1": 0.25,
        "test_accuracy": 0.75,
        "test_loss": 0.125,
        "test_examples": 1_000,
        "floors": {"class 1 always": 0.375},
        "other_floors": {"accuracy": {"majority class": 0.625}, "loss": {"rule": 2.0}},
    }
    assert summarize(result).splitlines() == [
        "glue with nystrom, seed 7: best validation f1 50.00% at step 1,200",
        "test f1 25.00% (1,000 examples)",
        "  floor: 37.50%  class 1 always",
        "test accuracy 75.00% (1,000 examples)",
        "  floor: 62.50%  majority class",
        "test loss 0.1250 (1,000 examples)",
        "  floor: 2.0000  rule",
    ]


MNLI_CLASSES = ("entailment", "neutral", "contradiction")


def write_mnli(folder, counts):
    """Official files of so many pairs. All of dev_mismatched are of the first class."""
    (folder / "MNLI").mkdir()
    for name, count in counts.items():
        lines = ["sentence1\tsentence2\tgold_label"]
        for number in range(count):
            label = MNLI_CLASSES[0 if name == "dev_mismatched" else number % 3]
            lines.append(f"{name} {number}\tB {number}\t{label}")
        (folder / "MNLI" / f"{name}.tsv").write_text("\n".join([*lines, ""]))


def test_result_has_both_test_splits_of_mnli(tmp_path):
    write_mnli(tmp_path, {"train": 60, "dev_matched": 12, "dev_mismatched": 7})
    config = make_config(
        "identity,quick,mnli",
        "glue",
        task__source_dir=str(tmp_path),
        task__data_dir=str(tmp_path / "data"),
        task__max_length=32,
        model__num_layers=1,
        model__model_dim=8,
        model__num_heads=2,
        model__mlp_dim=8,
        train__batch_size=8,
        train__num_epochs=1.0,
        train__eval_every=3,
    )
    result = run_training(Experiment(config), epath.Path(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    for split, num_examples in (("test", 12), ("test_mismatched", 7)):
        metrics = run.evaluate(split)
        assert metrics["examples"] == num_examples
        expected = {name: result[f"{split}_{name}"] for name in metrics}
        assert metrics == pytest.approx(expected, rel=TOLERANCE["same"])
        assert result["data_sha256"][split]
    assert result["test_accuracy"] != result["test_mismatched_accuracy"]
    assert result["floors"] == {"majority class": pytest.approx(1 / 3)}
    assert result["other_floors"] == {"mismatched_accuracy": {"majority class": 1.0}}

    lines = summarize(result).splitlines()
    assert [line for line in lines if line.startswith("test ")] == [
        f"test accuracy {result['test_accuracy']:.2%} (12 examples)",
        f"test mismatched_accuracy {result['test_mismatched_accuracy']:.2%} "
        "(7 examples)",
    ]
    table = score_table(make_frame(read_records([tmp_path / "run"])))
    scores = table.set_index("attention").loc["identity"]
    matched = 100 * result["test_accuracy"]
    mismatched = 100 * result["test_mismatched_accuracy"]
    assert scores["mnli accuracy, %"] == f"{matched:.2f} (1)"
    assert scores["mnli mismatched accuracy, %"] == f"{mismatched:.2f} (1)"
