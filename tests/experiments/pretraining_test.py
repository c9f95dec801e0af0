"""Text as in the paper, small: pre-trained, made longer, fine-tuned, and refused."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import Config
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.trained_run import load_run
from nystromformer.experiments.transfer import carried_over
from nystromformer.training.step import graphdef_of
from tests.commands import ROOT, refused
from tests.small import result_of

pytest.importorskip("tokenizers")

TINY = (
    *("--config.model.num_layers=1", "--config.model.model_dim=16"),
    *("--config.model.mlp_dim=16", "--config.model.dropout_rate=0.0"),
    *("--config.attention.num_landmarks=8", "--config.optimizer.warmup_steps=5"),
    *("--config.train.batch_size=8", "--config.train.log_every=5"),
)
SCHEDULE = tuple(
    f"--config.train.{name}={steps}"
    for name, steps in (("num_steps", 30), ("eval_every", 15), ("checkpoint_every", 15))
)
ORDER = ["mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"]


def write_texts(folder):
    draw = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("red", "old", "big", "wet") for b in "abcdefgh"]
    folder.mkdir()
    for number in range(80):
        sentences = (
            " ".join(draw.choice(words, draw.integers(2, 9))) for _ in range(9)
        )
        (folder / f"{number}.txt").write_text(f"{'. '.join(sentences)}.")


@pytest.fixture(scope="module")
def folder(commands):
    folder = commands.folder / "text"
    write_texts(folder)
    return folder


def pretrain(commands, folder, workdir, *changes):
    return commands.run(
        "train.py",
        f"--config={ROOT}/configs/corpus.py:nystrom,quick",
        f"--config.task.source_dir={folder}",
        "--config.task.vocab_size=300",
        *TINY,
        *SCHEDULE,
        *changes,
        f"--workdir={workdir}",
    )


@pytest.fixture(scope="module")
def pretrained(commands, folder):
    workdir = commands.folder / "bert"
    done = pretrain(commands, folder, workdir)
    assert done.returncode == 0, done.stderr
    assert "test sop_accuracy " in done.stdout
    (best,) = (workdir / "best").iterdir()
    shutil.copy(best, workdir / "checkpoints")  # as a kill at its very end leaves one
    return workdir


def test_both_objectives_are_measured_apart_beside_their_floors(pretrained):
    result = result_of(pretrained)
    assert result["metric"] == "mlm_accuracy"
    assert list(result["floors"]) == [
        "frequency of each token",
        "frequency given both neighbours",
    ]
    assert list(result["other_floors"]) == ["mlm_loss", "sop_accuracy"]
    lines = (pretrained / "metrics.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        assert {"loss", *ORDER} <= row.keys()
    assert 0 < result["test_mlm_loss"] < np.log(300)


def test_the_longer_model_is_the_old_one_on_what_that_could_read(pretrained):
    source = load_run(pretrained)
    groups = source.config.to_mapping()
    groups["task"]["max_length"] = 128
    longer = Experiment.from_config(Config.from_mapping(groups))
    graphdef = graphdef_of(longer.make_model)
    fresh = nnx.split(longer.make_model(nnx.Rngs(1)), nnx.Param, ...)[1:]
    weights = carried_over(source, type(source.weights)(*fresh), longer)
    extended = nnx.merge(graphdef, *jax.device_put(weights))
    inputs = np.random.default_rng(0).integers(5, 300, (3, 64))
    for mask in (None, np.arange(64) < np.array([[64], [50], [7]])):
        old, new = (nnx.jit(model)(inputs, mask) for model in (source.model, extended))
        np.testing.assert_array_equal(old, new)
    positions = extended.encoder.positions[...]
    np.testing.assert_array_equal(positions[:64], positions[64:])
    assert jax.tree.leaves(weights)[0].shape == jax.tree.leaves(source.weights)[0].shape


def glue(commands, tmp_path, pretrained, *changes):
    """MRPC as published: 72 pairs, of which the first words tell the class."""
    for name, count in (("train", 72), ("dev", 12)):
        lines = [
            f"{i % 2}\t1\t2\t{'redc'[: 3 + i % 2]} {i} {name}\toldb {i}"
            for i in range(count)
        ]
        text = "\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *lines, ""])
        (tmp_path / "MRPC").mkdir(exist_ok=True)
        (tmp_path / "MRPC" / f"{name}.tsv").write_text(text)
    return commands.run(
        "train.py",
        f"--config={ROOT}/configs/glue.py:nystrom,quick,mrpc",
        f"--config.task.source_dir={tmp_path}",
        "--config.task.max_length=48",
        f"--config.task.tokenizer={pretrained}/tokenizer.json",
        f"--config.train.init_from={pretrained}",
        *TINY,
        *("--config.optimizer.learning_rate=0.01", "--config.train.eval_every=40"),
        *changes,
        f"--workdir={tmp_path}/run",
    )


@pytest.mark.slow
def test_fine_tuning_learns_64_pairs_by_heart_in_epochs(commands, tmp_path, pretrained):
    done = glue(commands, tmp_path, pretrained, "--config.train.num_epochs=20.0")
    assert done.returncode == 0, done.stderr
    assert "20 epochs: 160 steps" in done.stdout  # of 64 examples in batches of 8
    assert "params.encoder.positions: 16 rows dropped" in done.stdout
    assert "new: params.out.bias, params.out.kernel; dropped: " in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    train = [row for row in map(json.loads, lines) if row["split"] == "train"]
    assert (train[-1]["step"], train[-1]["accuracy"]) == (160, 1.0)
    result = result_of(tmp_path / "run")
    assert result["metric"] == "f1"
    assert result["floors"] == {"class 1 always": pytest.approx(2 / 3)}
    assert result["init_from_sha256"] == result_of(pretrained)["params_sha256"]
    again = glue(commands, tmp_path, pretrained, "--config.train.num_epochs=20.0")
    assert "is finished" in again.stdout, again.stderr
    moved = shutil.copytree(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(tmp_path / "run")
    run = load_run(moved)
    assert run.task.vocabulary_file() == moved / "tokenizer.json"
    found = run.predict([("red 7 new", "oldb 7"), ("redc 8 new", "oldb 8")]).classes
    assert found.tolist() == [0, 1]


@pytest.fixture(scope="module")
def broken(commands, pretrained):
    """What cannot be begun with: unfinished, damaged, of other sub-words."""
    names = ("unfinished", "damaged", "exchanged")
    folders = {name: commands.folder / name for name in names}
    for path in folders.values():
        shutil.copytree(pretrained, path)
    (folders["unfinished"] / "result.json").unlink()
    (damaged,) = (folders["damaged"] / "best").iterdir()
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with (folders["exchanged"] / "tokenizer.json").open("a") as file:
        file.write("\n")
    return folders


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("train.init_from={unfinished}", "is not finished: train it to its end"),
        ("train.init_from={damaged}", "is damaged"),
        ("train.init_from={exchanged}", "tokenizer.json is not the one that"),
        ("task.tokenizer=byte", "was trained on other tokens than"),
        ("objective.select=F1", "select must be accuracy or f1, got 'F1'"),
        ("train.num_epochs=0.1", "warmup_steps=5 must lie between 0 and"),
    ],
)
def test_what_cannot_be_fine_tuned(
    commands, tmp_path, pretrained, broken, change, text
):
    flag = f"--config.{change.format(**broken)}"
    assert text in refused(glue(commands, tmp_path, pretrained, flag))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("objective.mlm_probability=1.5", "mlm_probability must be in (0, 1], got 1.5"),
        ("task.pattern=*.md", "0 documents in"),
    ],
)
def test_what_cannot_be_pretrained(commands, folder, tmp_path, change, text):
    done = pretrain(commands, folder, tmp_path / "run", f"--config.{change}")
    assert text in refused(done)
    assert not (tmp_path / "run").exists()
