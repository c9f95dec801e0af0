"""Text as in the paper, small: pre-trained, made longer, fine-tuned, and refused."""

import json
import shutil

import jax
import numpy as np
import pytest
from flax import nnx

from configs.labelled_texts import get_config as get_labelled_texts_config
from lra_tasks.subwords import Vocabulary
from nystromformer.config import Config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.trained_run import load_run
from nystromformer.experiments.transfer import carry_over, replace_weights
from nystromformer.training.step import leaves_by_name, split_weights
from tests.commands import ROOT, refused
from tests.small import result_of

pytest.importorskip("tokenizers")

TINY = (
    "--config.model.num_layers=1",
    "--config.model.model_dim=16",
    "--config.model.mlp_dim=16",
    "--config.model.dropout_rate=0.0",
    "--config.attention.num_landmarks=8",
    "--config.optimizer.warmup_steps=5",
    "--config.train.batch_size=8",
    "--config.train.log_every=5",
)
SCHEDULE = ("--config.train.num_steps=30", "--config.train.eval_every=15")
LOSSES = {"loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"}


@pytest.fixture(scope="module")
def pretrained(commands):
    """A run of configs/corpus.py on texts of a few words."""
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in ("red", "old", "big", "wet") for b in "abcdefgh"]
    folder = commands.folder / "text"
    workdir = commands.folder / "bert"
    folder.mkdir()
    for number in range(80):
        sentences = (rng.choice(words, rng.integers(2, 9)) for _ in range(9))
        text = ". ".join(map(" ".join, sentences))
        (folder / f"{number}.txt").write_text(f"{text}.")
    task = f"--config.task.source_dir={folder}", "--config.task.vocab_size=300"
    config = f"--config={ROOT}/configs/corpus.py:nystrom,quick"
    done = commands.run(
        "train.py", config, *task, *TINY, *SCHEDULE, f"--workdir={workdir}"
    )
    assert done.returncode == 0, done.stderr
    assert "test sop_accuracy " in done.stdout
    return workdir


def test_train_measures_both_objectives_beside_their_floors(pretrained):
    result = result_of(pretrained)
    assert result["metric"] == "mlm_accuracy"
    assert list(result["floors"]) == ["frequency of each token"]
    assert list(result["other_floors"]) == ["mlm_loss", "sop_accuracy"]
    lines = (pretrained / "metrics.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        assert row.keys() >= LOSSES
    assert 0 < result["test_mlm_loss"] < np.log(300)


def test_carry_over_keeps_what_the_shorter_model_computes(commands, pretrained):
    source = load_run(pretrained)
    groups = source.config.to_mapping()
    groups["task"] |= {"max_length": 128, "data_dir": str(commands.folder / "data")}
    groups["train"]["init_from"] = str(pretrained)
    longer = Experiment(Config.from_mapping(groups))
    longer.load()  # learns its tokens
    _, fresh = split_weights(longer.make_model(nnx.Rngs(1)))
    weights = replace_weights(fresh, carry_over(source, longer))
    extended = nnx.merge(longer.graphdef, *jax.device_put(weights))
    inputs = np.random.default_rng(0).integers(5, 300, (3, 64))
    for mask in (None, np.arange(64) < np.array([[64], [50], [7]])):
        old, new = (nnx.jit(model)(inputs, mask) for model in (source.model, extended))
        np.testing.assert_array_equal(old, new)


def test_own_labelled_texts_are_fine_tuned_with_two_settings(tmp_path, pretrained):
    """Beside the sizes of TINY, which this pre-training run has."""
    (tmp_path / "train.csv").write_text("text,label\nredc oldb,ham\nbigh wetd,spam\n")
    config = get_labelled_texts_config("nystrom,quick,subwords")
    with config.unlocked():
        for word in TINY:
            path, value = word.removeprefix("--config.").split("=")
            config.update_from_flattened_dict({path: json.loads(value)})
    config.task.update(source_dir=str(tmp_path), labels="ham,spam")
    config.train.init_from = str(pretrained)
    config.task.tokenizer = str(pretrained / "tokenizer.json")
    experiment = Experiment(Config.from_mapping(config.to_dict()))
    weights = carry_over(load_run(pretrained), experiment)
    encoder = {
        name
        for name in leaves_by_name(experiment.weight_shapes)
        if name.startswith("params.encoder.")
    }
    assert encoder <= weights.keys()


def test_a_run_reads_texts_by_the_sub_words_it_has_learnt(pretrained):
    run = load_run(pretrained)
    pair = ("redc oldb wet.", "bigh redc")
    ids, lengths = Vocabulary(str(pretrained / "tokenizer.json")).rows([pair], 64)
    by_text = run.layers([pair])[0].query
    by_ids = run.layers(ids, lengths)[0].query
    np.testing.assert_array_equal(by_text, by_ids)


def glue(commands, tmp_path, pretrained, *changes):
    """MRPC as published: 72 pairs, of which the first words tell the class."""
    (tmp_path / "MRPC").mkdir(exist_ok=True)
    for name, count in (("train", 72), ("dev", 12)):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for i in range(count):
            lines.append(f"{i % 2}\t1\t2\t{'redc'[: 3 + i % 2]} {i} {name}\toldb {i}")
        (tmp_path / "MRPC" / f"{name}.tsv").write_text("\n".join([*lines, ""]))
    settings = {
        "task.source_dir": tmp_path,
        "task.max_length": 48,
        "task.tokenizer": pretrained / "tokenizer.json",
        "train.init_from": pretrained,
        "optimizer.learning_rate": 0.01,
        "train.eval_every": 40,
    }
    words = [f"--config.{key}={value}" for key, value in settings.items()]
    config = f"--config={ROOT}/configs/glue.py:nystrom,quick,mrpc"
    workdir = f"--workdir={tmp_path}/run"
    return commands.run("train.py", config, *words, *TINY, *changes, workdir)


@pytest.mark.slow
def test_train_learns_64_pairs_by_heart_in_epochs(commands, tmp_path, pretrained):
    done = glue(commands, tmp_path, pretrained, "--config.train.num_epochs=20.0")
    assert done.returncode == 0, done.stderr
    assert " 160 steps of 8 on" in done.stdout  # 20 epochs of 64 examples
    assert "params.encoder.positions: 64 rows repeated or cut to 48" in done.stdout
    assert "new: params.out.bias, params.out.kernel; dropped: " in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    train = [row for row in map(json.loads, lines) if row["split"] == "train"]
    assert (train[-1]["step"], train[-1]["accuracy"]) == (160, 1.0)
    result = result_of(tmp_path / "run")
    assert result["other_floors"]["f1"] == {"class 1 always": pytest.approx(2 / 3)}
    assert result["init_from_sha256"] == result_of(pretrained)["params_sha256"]
    again = glue(commands, tmp_path, pretrained, "--config.train.num_epochs=20.0")
    assert "is finished" in again.stdout, again.stderr
    moved = shutil.copytree(tmp_path / "run", tmp_path / "moved")
    shutil.rmtree(tmp_path / "run")
    run = load_run(moved)
    assert str(run.task.vocabulary_file()) == str(moved / "tokenizer.json")
    found = run.predict([("red 7 new", "oldb 7"), ("redc 8 new", "oldb 8")]).classes
    assert found.tolist() == [0, 1]


def test_train_rejects_an_unfinished_source(commands, tmp_path, pretrained):
    unfinished = shutil.copytree(pretrained, tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    done = glue(commands, tmp_path, unfinished)
    assert "is not finished: train it to its end" in refused(done)
