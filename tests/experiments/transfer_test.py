"""Starting from another run: what is carried over, what is new, what is refused."""

import shutil
import signal
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from nystromformer.config import ConfigError
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.trained_run import load_run
from nystromformer.experiments.transfer import check_source
from nystromformer.training.checkpoint import saved_steps
from tests.small import make_config, result_of

WORD = "params.encoder.embedding.embedding"


def train(commands, workdir, *changes, preset="quick"):
    args = list(commands.train_args(workdir, "--config.train.num_steps=40", *changes))
    args[0] = args[0].replace("quick", preset)
    return commands.run("train.py", *args)


@pytest.fixture(scope="module")
def pretrained(commands):
    workdir = commands.folder / "pretrained"
    done = train(commands, workdir, preset="quick,pretrain")
    assert done.returncode == 0, done.stderr
    assert "validation loss" in done.stdout
    assert "floor" in done.stdout
    return workdir


def best(workdir):
    (file,) = (workdir / "best").iterdir()
    return load_file(file)


def test_all_but_the_heads_is_carried_over_and_said(commands, pretrained, tmp_path):
    source = f"--config.train.init_from={pretrained}"
    frozen = "--config.optimizer.learning_rate=1e-20"
    done = train(commands, tmp_path / "run", source, frozen)
    assert done.returncode == 0, done.stderr
    assert "new: params.head.hidden.bias" in done.stdout
    assert "dropped: params.bias, params.norm.bias" in done.stdout
    theirs, ours = best(pretrained), best(tmp_path / "run")
    assert len(theirs[WORD]) == len(ours[WORD]) + 1  # of the mask token
    theirs[WORD] = theirs[WORD][:-1]
    for name, leaf in ours.items():
        if name.startswith("params.encoder."):
            np.testing.assert_allclose(leaf, theirs[name], atol=1e-12)
    sha256 = result_of(pretrained)["params_sha256"]
    assert result_of(tmp_path / "run")["init_from_sha256"] == sha256


def test_a_run_goes_on_without_its_source(commands, pretrained, tmp_path):
    source, run = shutil.copytree(pretrained, tmp_path / "source"), tmp_path / "run"
    args = commands.train_args(run, f"--config.train.init_from={source}")
    process = commands.start("train.py", *args)
    while not saved_steps(run):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    shutil.rmtree(source)
    done = commands.run("train.py", *args)
    assert "resuming from step" in done.stdout, done.stderr
    sha256 = result_of(pretrained)["params_sha256"]
    assert result_of(run)["init_from_sha256"] == sha256


def test_more_positions_repeat_the_old_ones(commands, pretrained, tmp_path):
    longer = ("--config.task.max_length=90", "--config.optimizer.learning_rate=1e-20")
    source = f"--config.train.init_from={pretrained}"
    done = train(commands, tmp_path / "run", source, *longer)
    assert done.returncode == 0, done.stderr
    old = best(pretrained)["params.encoder.positions"]
    new = best(tmp_path / "run")["params.encoder.positions"]
    np.testing.assert_allclose(new, np.tile(old, (2, 1))[:90], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("model.model_dim=16", "is (16,) here and (8,) there"),
        ("model.num_layers=2", "and missing: take the source's width, depth"),
        ("train.init_from=/no/such/run", "is not a run"),
        ("train.init_from=", "train.init_from: String should have at least 1"),
        ("model.num_heads=4", "has model.num_heads=2, and this run 4: take the same"),
    ],
)
def test_what_cannot_be_explained_is_one_line_and_nothing_is_written(
    commands, pretrained, tmp_path, change, text
):
    source = f"--config.train.init_from={pretrained}"
    refused = train(commands, tmp_path / "run", source, f"--config.{change}")
    assert refused.returncode == 2, refused.stderr
    assert text in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_another_vocabulary_is_refused(pretrained):
    config = make_config("nystrom,quick", "text", train__init_from=str(pretrained))
    with pytest.raises(ConfigError, match=r"trained on 16 tokens.* has 257"):
        check_source(load_run(pretrained), Experiment.from_config(config))
