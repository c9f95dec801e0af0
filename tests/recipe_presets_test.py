"""Presets of two later papers on the tasks of the LRA, written out as published.

Each table has every key that its preset changes: a change that is not in it fails.
"""

import dataclasses

import pytest

from configs.defaults import attention, model, objective, optimizer, train
from tests.presets import check_settings, flat


@dataclasses.dataclass
class SelfPretraining:
    """A line of Amos et al. 2023, for one GPU."""

    num_examples: int
    mlm_probability: float
    model: dict
    pretrain_rate: float
    finetune_rate: float
    pretrain_epochs: int
    finetune_epochs: int
    finetune_batch_size: int = 32
    pooling: str = "mean"


SELF_PRETRAINING = {
    "listops": SelfPretraining(
        num_examples=96_000,
        mlm_probability=0.10,
        model=model(num_layers=6, model_dim=512, num_heads=8, mlp_dim=2048),
        pretrain_rate=1e-3,
        finetune_rate=1e-4,
        pretrain_epochs=100,
        finetune_epochs=100,
    ),
    "text": SelfPretraining(
        num_examples=22_500,
        mlm_probability=0.15,
        model=model(num_layers=6, model_dim=512, num_heads=8, mlp_dim=2048),
        pretrain_rate=5e-4,
        finetune_rate=1e-4,
        pretrain_epochs=32,
        finetune_epochs=65,
    ),
    "retrieval": SelfPretraining(
        num_examples=147_086,
        mlm_probability=0.15,
        model=model(num_layers=4, model_dim=128, num_heads=4, mlp_dim=512),
        pretrain_rate=5e-3,
        finetune_rate=5e-4,
        pretrain_epochs=32,
        finetune_epochs=32,
    ),
    "image": SelfPretraining(
        num_examples=45_000,
        mlm_probability=0.50,
        model=model(num_layers=3, model_dim=64, num_heads=4, mlp_dim=128),
        pretrain_rate=1e-3,
        finetune_rate=1e-3,
        pretrain_epochs=50,
        finetune_epochs=200,
        finetune_batch_size=50,
        pooling="max",
    ),
    "pathfinder": SelfPretraining(
        num_examples=160_000,
        mlm_probability=0.50,
        model=model(num_layers=4, model_dim=128, num_heads=8, mlp_dim=128),
        pretrain_rate=1e-3,
        finetune_rate=5e-4,
        pretrain_epochs=50,
        finetune_epochs=200,
    ),
}


def check_stage(task, preset, settings, *, batch_size, attention_name):
    """Checks a stage of self-pretraining, which evaluates once an epoch or nearly."""
    row = SELF_PRETRAINING[task]
    every = flat(task, preset)["train.eval_every"]
    assert every == pytest.approx(row.num_examples / batch_size, rel=0.002)
    expected = {
        **settings,
        **row.model,
        **model(dropout_rate=0.0, pooling=row.pooling, ignore_id=None),
        **optimizer(warmup_steps=1_000, decay="none", weight_decay=0.0),
        **optimizer(b1=0.9, b2=0.999),
        **train(num_steps=0, batch_size=batch_size),
        **train(eval_every=every, checkpoint_every=every),
    }
    if attention_name == "softmax":
        expected |= attention(dropout_rate=0.0)
    check_settings(task, preset, expected, attention=attention_name)


@pytest.mark.parametrize("attention_name", ["nystrom", "softmax"])
@pytest.mark.parametrize("task", SELF_PRETRAINING)
def test_self_pretraining_is_the_papers_table(task, attention_name):
    row = SELF_PRETRAINING[task]
    check_stage(
        task,
        "pretrain",
        {
            "objective.name": "mlm",
            "objective.corruption": "mask_only",
            "objective.mlm_probability": row.mlm_probability,
            "optimizer.learning_rate": row.pretrain_rate,
            "train.num_epochs": float(row.pretrain_epochs),
        },
        batch_size=32,
        attention_name=attention_name,
    )
    for preset, num_epochs in (
        ("finetune", row.finetune_epochs),
        ("scratch_matched", row.pretrain_epochs + row.finetune_epochs),
    ):
        check_stage(
            task,
            preset,
            {
                "objective.name": "classification",
                "optimizer.learning_rate": row.finetune_rate,
                "train.num_epochs": float(num_epochs),
            },
            batch_size=row.finetune_batch_size,
            attention_name=attention_name,
        )


@pytest.mark.parametrize("task", SELF_PRETRAINING)
def test_self_pretraining_keeps_the_model_and_steps_of_quick(task):
    all_tokens = model(ignore_id=None)
    masked = all_tokens | {
        "objective.name": "mlm",
        "objective.corruption": "mask_only",
        "objective.mlm_probability": SELF_PRETRAINING[task].mlm_probability,
    }
    check_settings(task, "quick,pretrain", masked, base="quick")
    check_settings(task, "quick,finetune", all_tokens, base="quick")
    num_steps = flat(task, "quick")["train.num_steps"]
    twice = all_tokens | train(num_steps=2 * num_steps)
    check_settings(task, "quick,scratch_matched", twice, base="quick")


@dataclasses.dataclass
class Modern:
    """A line of Miralles-González et al. 2025, from their public configs."""

    num_examples: int
    model: dict
    learning_rate: float
    batch_size: int
    num_epochs: int
    dropout_rate: float
    weight_decay: float


MODERN = {
    "listops": Modern(
        num_examples=96_000,
        model=model(num_layers=6, model_dim=80, num_heads=4, mlp_dim=160),
        learning_rate=1e-3,
        batch_size=64,
        num_epochs=80,
        dropout_rate=0.0,
        weight_decay=0.01,
    ),
    "text": Modern(
        num_examples=22_500,
        model=model(num_layers=4, model_dim=128, num_heads=8, mlp_dim=256),
        learning_rate=4e-3,
        batch_size=32,
        num_epochs=60,
        dropout_rate=0.1,
        weight_decay=0.01,
    ),
    "retrieval": Modern(
        num_examples=147_086,
        model=model(num_layers=6, model_dim=128, num_heads=4, mlp_dim=256),
        learning_rate=1e-3,
        batch_size=64,
        num_epochs=40,
        dropout_rate=0.1,
        weight_decay=0.01,
    ),
    "image": Modern(
        num_examples=45_000,
        model=model(num_layers=8, model_dim=160, num_heads=4, mlp_dim=320),
        learning_rate=5e-4,
        batch_size=32,
        num_epochs=200,
        dropout_rate=0.0,
        weight_decay=0.0,
    ),
    "pathfinder": Modern(
        num_examples=320_000,
        model=model(num_layers=6, model_dim=128, num_heads=4, mlp_dim=256),
        learning_rate=1e-3,
        batch_size=128,
        num_epochs=100,
        dropout_rate=0.0,
        weight_decay=0.01,
    ),
}
DENOISING = objective(
    name="classification_denoising",
    mlm_probability=0.3,
    denoising_weight=0.3,
    corruption="mask_or_random",
)
TECHNIQUES = {
    "listops": train(shuffle_arguments=True),
    "text": DENOISING | {"task.max_length": 2_048},
    "retrieval": DENOISING | {"task.max_length": 1_024},
    "image": train(flip_horizontal=True),
    "pathfinder": {
        **train(flip_horizontal=True, flip_vertical=True),
        "task.easier_share": 0.5,
    },
}


def modern_recipe(task):
    """The settings of modern that do not depend on the size.

    The short convolution and the weight of the denoising loss are not the paper's.
    """
    row = MODERN[task]
    return {
        **model(positions="rotary", short_conv=5, dropout_rate=row.dropout_rate),
        **model(ignore_id=None),
        **attention(conv_kernel_size=0),
        **optimizer(b1=0.9, b2=0.98, weight_decay=row.weight_decay, decay="linear"),
        **TECHNIQUES[task],
    }


@pytest.mark.parametrize("task", MODERN)
def test_modern_is_the_table_of_its_paper(task):
    """It evaluates once an epoch; a twentieth of the steps is warm-up, not as there."""
    row = MODERN[task]
    every = flat(task, "modern")["train.eval_every"]
    assert every == pytest.approx(row.num_examples / row.batch_size, rel=0.001)
    expected = {
        **modern_recipe(task),
        **row.model,
        "model.pooling": "mean",
        "optimizer.learning_rate": row.learning_rate,
        "optimizer.warmup_steps": row.num_epochs * every // 20,
        "train.num_steps": 0,
        "train.num_epochs": float(row.num_epochs),
        "train.batch_size": row.batch_size,
        "train.eval_every": every,
        "train.checkpoint_every": every,
    }
    check_settings(task, "modern", expected)


@pytest.mark.parametrize("task", MODERN)
def test_modern_drops_no_weights_of_exact_attention(task):
    assert flat(task, "softmax,modern")["attention.dropout_rate"] == 0.0


@pytest.mark.parametrize("task", MODERN)
def test_quick_modern_is_the_recipe_on_the_data_of_quick(task):
    expected = modern_recipe(task) | optimizer(learning_rate=2e-3)
    expected.pop("task.max_length", None)
    expected.pop("task.easier_share", None)
    if task == "text":
        expected |= train(num_steps=2_000)
    check_settings(task, "quick,modern", expected, base="quick")
