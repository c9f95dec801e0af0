"""Small runs on text as in the paper: pre-trained, made longer and fine-tuned."""

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
from tests.tolerance import TOLERANCE, relative_error
from tests.training.metrics_file import rows_of

pytest.importorskip("tokenizers")

TINY = (
    "--config.model.num_layers=1",
    "--config.model.model_dim=16",
    "--config.model.mlp_dim=16",
    "--config.model.dropout_rate=0.0",
    "--config.attention.num_landmarks=8",
    "--config.attention.num_pinv_iters=1",
    "--config.optimizer.warmup_steps=5",
    "--config.train.batch_size=8",
    "--config.train.log_every=5",
)
SCHEDULE = ("--config.train.num_steps=30", "--config.train.eval_every=15")
METRICS = {"loss", "mlm_loss", "mlm_accuracy", "sop_loss", "sop_accuracy"}


def write_texts(folder):
    """Writes eighty texts of nine sentences."""
    rng = np.random.default_rng(0)
    stems = ("red", "old", "big", "wet")
    words = [stem + ending for stem in stems for ending in "abcdefgh"]
    folder.mkdir()
    for number in range(80):
        sentences = []
        for _ in range(9):
            num_words = rng.integers(2, 9)
            sentences.append(" ".join(rng.choice(words, num_words)))
        (folder / f"{number}.txt").write_text(f"{'. '.join(sentences)}.")


@pytest.fixture(scope="module")
def pretrained(commands):
    """A run of configs/corpus.py on texts of a few words."""
    folder = commands.folder / "text"
    workdir = commands.folder / "bert"
    write_texts(folder)
    done = commands.run(
        "train.py",
        f"--config={ROOT}/configs/corpus.py:nystrom,quick",
        f"--config.task.source_dir={folder}",
        "--config.task.vocab_size=300",
        *TINY,
        *SCHEDULE,
        f"--workdir={workdir}",
    )
    assert done.returncode == 0, done.stderr
    assert "test sop_accuracy " in done.stdout
    return workdir


def test_train_measures_both_objectives_beside_their_floors(pretrained):
    result = result_of(pretrained)
    assert result["metric"] == "mlm_accuracy"
    assert list(result["floors"]) == ["frequency of each token"]
    assert list(result["other_floors"]) == ["mlm_loss", "sop_accuracy"]
    for row in rows_of(pretrained):
        assert row.keys() >= METRICS
    assert 0 < result["test_mlm_loss"] < np.log(300)


def test_carry_over_keeps_what_the_shorter_model_computes(commands, pretrained):
    source = load_run(pretrained)
    groups = source.config.to_mapping()
    groups["task"] |= {"max_length": 128, "data_dir": str(commands.folder / "data")}
    groups["train"] |= {"init_from": str(pretrained), "position_repeats": 2}
    longer = Experiment(Config.from_mapping(groups))
    # The longer model learns its tokens when it loads.
    longer.load()
    _, initial_weights = split_weights(longer.make_model(nnx.Rngs(1)))
    weights = replace_weights(initial_weights, carry_over(source, longer))
    longer_model = nnx.merge(longer.graphdef, *jax.device_put(weights))

    inputs = np.random.default_rng(0).integers(5, 300, (3, 64))
    for mask in (None, np.arange(64) < np.array([[64], [50], [7]])):
        logits = nnx.jit(longer_model)(inputs, mask)
        expected = nnx.jit(source.model)(inputs, mask)
        assert relative_error(logits, expected) <= TOLERANCE["same"]


def test_own_labelled_texts_are_fine_tuned_with_two_settings(tmp_path, pretrained):
    """The two are `init_from` and the tokenizer.

    The sizes of TINY are set too, since the pre-training run has them.
    """
    (tmp_path / "train.csv").write_text("text,label\nredc oldb,ham\nbigh wetd,spam\n")
    config = get_labelled_texts_config("nystrom,quick,subwords")
    with config.unlocked():
        for flag in TINY:
            path, value = flag.removeprefix("--config.").split("=")
            config.update_from_flattened_dict({path: json.loads(value)})
    config.task.update(source_dir=str(tmp_path), labels="ham,spam")
    config.train.init_from = str(pretrained)
    config.task.tokenizer = str(pretrained / "tokenizer.json")
    experiment = Experiment(Config.from_mapping(config.to_dict()))
    weights = carry_over(load_run(pretrained), experiment)
    for name in leaves_by_name(experiment.weight_shapes):
        if name.startswith("params.encoder."):
            assert name in weights


def test_a_run_reads_texts_by_the_sub_words_it_has_learnt(pretrained):
    run = load_run(pretrained)
    pair = ("redc oldb wet.", "bigh redc")
    ids, lengths = Vocabulary(str(pretrained / "tokenizer.json")).rows([pair], 64)
    by_text = run.layers([pair])[0].query
    by_ids = run.layers(ids, lengths)[0].query
    np.testing.assert_array_equal(by_text, by_ids)


def write_mrpc(folder):
    """Writes MRPC as published: pairs whose class is told by the first word."""
    folder.mkdir(parents=True)
    for name, num_pairs in (("train", 72), ("dev", 12)):
        lines = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        for number in range(num_pairs):
            label = number % 2
            word = ("red", "redc")[label]
            lines.append(f"{label}\t1\t2\t{word} {number} {name}\toldb {number}")
        (folder / f"{name}.tsv").write_text("\n".join([*lines, ""]))


def fine_tune(commands, workdir, data, source):
    """Trains a model of pairs for twenty epochs from the weights of a run."""
    return commands.run(
        "train.py",
        f"--config={ROOT}/configs/glue.py:nystrom,quick,mrpc",
        f"--config.task.source_dir={data}",
        "--config.task.max_length=48",
        f"--config.task.tokenizer={source}/tokenizer.json",
        f"--config.train.init_from={source}",
        "--config.optimizer.learning_rate=0.01",
        "--config.train.eval_every=40",
        "--config.train.num_epochs=20.0",
        *TINY,
        f"--workdir={workdir}",
    )


@pytest.mark.slow
def test_train_learns_64_pairs_by_heart_in_epochs(commands, tmp_path, pretrained):
    workdir = tmp_path / "run"
    write_mrpc(tmp_path / "MRPC")
    done = fine_tune(commands, workdir, tmp_path, pretrained)
    assert done.returncode == 0, done.stderr
    # Twenty epochs of 64 examples are 160 batches of 8.
    assert " 160 steps of 8 on" in done.stdout
    assert "params.encoder.positions: 64 rows repeated or cut to 48" in done.stdout
    assert "new: params.out.bias, params.out.kernel; dropped: " in done.stdout

    *_, last_row = rows_of(workdir, "train")
    assert last_row["step"] == 160
    assert last_row["accuracy"] == 1.0
    result = result_of(workdir)
    assert result["other_floors"]["f1"] == {"class 1 always": pytest.approx(2 / 3)}
    assert result["init_from_sha256"] == result_of(pretrained)["params_sha256"]

    done = fine_tune(commands, workdir, tmp_path, pretrained)
    assert "is finished" in done.stdout, done.stderr

    moved_workdir = workdir.rename(tmp_path / "moved")
    run = load_run(moved_workdir)
    assert str(run.task.vocabulary_file()) == str(moved_workdir / "tokenizer.json")
    pairs = [("red 7 new", "oldb 7"), ("redc 8 new", "oldb 8")]
    assert run.predict(pairs).classes.tolist() == [0, 1]


def test_train_rejects_an_unfinished_source(commands, tmp_path, pretrained):
    write_mrpc(tmp_path / "MRPC")
    unfinished_run = shutil.copytree(pretrained, tmp_path / "unfinished")
    (unfinished_run / "result.json").unlink()
    done = fine_tune(commands, tmp_path / "run", tmp_path, unfinished_run)
    assert "is not finished: train it to its end" in refused(done)
