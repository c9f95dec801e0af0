"""A run with an option of the docs or a preset begins, resumes to the bit, is used."""

import jax
import numpy as np
import pytest
from etils import epath

from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.run import run_training
from nystromformer.experiments.trained_run import load_run
from tests.small import make_config, stopped_at_once
from tests.tolerance import TOLERANCE

pytestmark = pytest.mark.slow

SMALL = {
    "task__num_train": 64,
    "task__num_validation": 16,
    "task__num_test": 16,
    "model__num_layers": 1,
    "model__model_dim": 8,
    "model__mlp_dim": 8,
    "optimizer__warmup_steps": 1,
    "train__batch_size": 8,
    "train__num_steps": 4,
    "train__eval_every": 2,
    "train__checkpoint_every": 4,
}
REMAT = {"model__remat": "block"}
LESS_MEMORY = {
    "model__remat": "block",
    "model__dtype": "bfloat16",
    "train__grad_accum_steps": 2,
    "train__length_buckets": 2,
}
BERT = {
    "model__norm": "post",
    "model__gelu": "tanh",
    "model__embedding_norm": True,
    "model__num_token_types": 2,
    "model__pooling": "max",
}
LOCAL = {
    "model__positions": "rotary",
    "model__short_conv": 5,
    "model__pooling": "cls_token",
    "attention__conv_kernel_size": 0,
    "train__shuffle_arguments": True,
}
DENOISING = {
    "objective__name": "classification_denoising",
    "objective__mlm_probability": 0.3,
    "objective__denoising_weight": 0.3,
}
OTHER_LANDMARKS = {"attention__landmarks": "random", "attention__pinv": "exact"}
SCHEDULE = {
    "optimizer__decay": "none",
    "optimizer__cycle_b1": True,
    "model__positions": "none",
    "model__ignore_id": 3,
    "model__dropout_rate": 0.0,
    "attention__landmarks": "kmeans",
    "attention__pinv": "identity",
}
PUBLISHED = ("nystrom", "softmax", "linformer", "performer", "reformer")
CASES = [
    *((f"{name},quick", LESS_MEMORY) for name in ATTENTIONS),
    *((f"{name},quick,as_published", {}) for name in PUBLISHED),
    ("nystrom,quick,as_published", REMAT),
    ("nystrom,quick", REMAT | BERT),
    ("nystrom,quick", REMAT | LOCAL),
    ("nystrom,quick", LOCAL | DENOISING),
    ("nystrom,quick", OTHER_LANDMARKS | {"attention__num_landmarks": 30}),
    ("nystrom,quick", SCHEDULE),
    (
        "nystrom,quick",
        LESS_MEMORY
        | {
            "model__num_layers": 3,
            "attention__by_layer": "0=softmax 2=linformer 2.projection_dim=8",
        },
    ),
    ("nystrom,quick", {"attention__num_landmarks": 48}),  # one for each token
    ("nystrom,quick", {"train__num_steps": 0, "train__num_epochs": 0.5}),
    ("nystrom,quick,pretrain", LESS_MEMORY),
    ("nystrom,quick,finetune", {}),
]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize(("arg", "changes"), CASES, ids=str)
def test_option_trains_validates_resumes_and_evaluates(
    arg, changes, data_dir, tmp_path
):
    config = make_config(arg, **SMALL | changes, task__data_dir=data_dir)
    workdir = epath.Path(tmp_path / "run")
    with stopped_at_once():
        run_training(Experiment(config), workdir)

    result = run_training(Experiment(config), workdir)
    assert [session["step"] for session in result["sessions"]] == [0, 1]
    assert result["steps"] == 4
    assert result["best_step"] in (2, 4)
    whole_run = run_training(Experiment(config), epath.Path(tmp_path / "whole"))
    # All three have compiled the same program.
    assert result["params_sha256"] == whole_run["params_sha256"]

    run = load_run(workdir)
    metrics = run.evaluate("test")
    expected = {name: result[f"test_{name}"] for name in metrics}
    assert metrics == pytest.approx(expected, rel=TOLERANCE["same"])
    if config.objective.name.startswith("classification"):
        tokens, lengths = run.task.encode(["[MAX 2 3 ]", "[MIN 2 [SM 8 9 ] ]"])
        probabilities = run.predict(tokens, lengths).probabilities
        np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    tokens = np.ones((3, 1, 48), np.int32)
    outputs = jax.vmap(lambda example: run.model(example))(tokens)
    assert np.isfinite(np.asarray(outputs, np.float32)).all()
