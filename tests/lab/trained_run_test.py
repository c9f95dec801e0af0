"""The best weights of a run, and what is none."""

import shutil

import jax
import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.trained_run import TrainedRun
from nystromformer.lab.workdir import read_result, write_result
from nystromformer.training.checkpoint import CheckpointError, digest
from nystromformer.training.step import split_weights


def test_the_model_has_the_weights_that_were_tested(finished):
    workdir, _ = finished
    run = TrainedRun.load(workdir)
    result = read_result(workdir)
    assert run.result == result
    assert run.step == result["best_step"]
    _, weights = split_weights(run.model())
    assert digest(jax.device_get(weights)) == result["params_sha256"]


def test_what_is_no_trained_run_is_said(finished, tmp_path):
    with pytest.raises(ConfigError, match="is no run"):
        TrainedRun.load(tmp_path)
    workdir = tmp_path / "run"
    shutil.copytree(finished[0], workdir)
    result = read_result(workdir)
    write_result(workdir, {**result, "params_sha256": "0" * 64})
    with pytest.raises(CheckpointError, match=r"not those of its result\.json"):
        TrainedRun.load(workdir)
    shutil.rmtree(workdir / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoints yet"):
        TrainedRun.load(workdir)
