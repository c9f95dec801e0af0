"""The settings of each task without a preset or as published, written out.

Each table has every key that its preset changes: a change that is not in it fails.
"""

import pytest

from configs.defaults import attention, model, objective, optimizer, train
from lra_tasks import LRA
from tests.presets import check_settings, flat
from tests.small import BUILT_IN_ATTENTIONS


def settings_of(settings, *groups):
    """The settings of some groups."""
    return {
        key: value for key, value in settings.items() if key.partition(".")[0] in groups
    }


# The options with which the paper's baselines, and the others, are trained and timed.
ATTENTION_OPTIONS = {
    "nystrom": {
        "num_landmarks": 64,
        "num_pinv_iters": 6,
        "conv_kernel_size": 35,
        "landmark_padding": "mask",
        "landmarks": "segment_means",
        "landmark_seed": 0,
        "pinv": "iterative",
        "pinv_init": "per_matrix",
        "fused": False,
    },
    "softmax": {"dropout_rate": 0.1, "fused": True},
    "linformer": {"projection_dim": 256, "sharing": "key_value"},
    "performer": {"num_features": 256, "kernel": "softmax", "redraw_features": False},
    "reformer": {
        "num_hashes": 2,
        "bucket_size": 64,
        "lsh_scope": "bucket",
        "redraw_hashes": False,
    },
    # A token sees 128 on each side, and itself.
    "longformer": {"window": 256},
    "bigbird": {"block_size": 64, "num_random_blocks": 3},
    "linear": {},
    "efficient": {},
    "identity": {},
}


def test_every_attention_has_the_options_of_the_papers_table():
    assert ATTENTION_OPTIONS.keys() == BUILT_IN_ATTENTIONS.keys()
    for name, options in ATTENTION_OPTIONS.items():
        for task in LRA:
            assert settings_of(flat(task, name), "attention") == attention(
                name=name, by_layer=None, **options
            )


# The id that is padding wherever it stands: in pictures black, as in the benchmark's
# own code and in all that has published scores.
IGNORE_ID = {"image": 0, "pathfinder": 0}
# The settings that all tasks have, beside the table of defaults_test.
SETTINGS_OF_ALL_TASKS = {
    **model(
        num_layers=2,
        num_heads=2,
        model_dim=64,
        mlp_dim=128,
        dropout_rate=0.1,
        norm="pre",
        norm_epsilon=1e-5,
        gelu="erf",
        embedding_norm=False,
        num_token_types=0,
        pooling="mean",
        remat="none",
        dtype="float32",
        positions="learned",
        short_conv=0,
    ),
    **optimizer(
        learning_rate=1e-4,
        decay="linear",
        weight_decay=0.0,
        b1=0.9,
        b2=0.999,
        eps=1e-6,
        cycle_b1=False,
    ),
    **train(
        seed=0,
        grad_accum_steps=1,
        length_buckets=1,
        num_epochs=None,
        init_from=None,
        log_every=50,
        flip_horizontal=False,
        flip_vertical=False,
        shuffle_arguments=False,
    ),
    **objective(name="classification", select=None),
}
# Each task has a value of its own for these.
KEYS_OF_EACH_TASK = {
    "train.batch_size",
    "train.num_steps",
    "train.eval_every",
    "train.checkpoint_every",
    "optimizer.warmup_steps",
}


@pytest.mark.parametrize("task", LRA)
def test_every_setting_of_a_task_of_the_lra_is_the_authors_or_in_their_table(task):
    settings = settings_of(flat(task, ""), "model", "optimizer", "train", "objective")
    expected = SETTINGS_OF_ALL_TASKS | model(ignore_id=IGNORE_ID.get(task))
    assert settings.keys() == expected.keys() | KEYS_OF_EACH_TASK
    assert settings.items() >= expected.items()


@pytest.mark.parametrize("task", ["image", "pathfinder", "pathx"])
@pytest.mark.parametrize("preset", ["", "quick", "as_published"])
def test_all_pixels_are_tokens_with_this_preset_alone(task, preset):
    assert flat(task, preset)["model.ignore_id"] == 0
    all_pixels = f"{preset},all_pixels".strip(",")
    check_settings(task, all_pixels, model(ignore_id=None), base=preset)


# Of the data; nothing else decides what a task draws or reads.
TASK_SETTINGS = {
    "listops": {
        "max_length": 2_000,
        "num_train": 96_000,
        "num_validation": 2_000,
        "num_test": 2_000,
        "min_tokens": 501,
        "max_tokens": 1_999,
        "max_depth": 10,
        "max_args": 10,
        "seed": 0,
    },
    "text": {"max_length": 4_000, "num_bytes": None, "tokenizer": None, "seed": 0},
    "retrieval": {"max_length": 4_000, "num_bytes": None, "tokenizer": None},
    "image": {"max_length": 1_024, "seed": 0},
    "pathfinder": {
        "max_length": 1_024,
        "resolution": 32,
        "difficulty": "hard",
        "num_examples": 200_000,
        "num_workers": None,
        "easier_share": 0.0,
        "seed": 0,
    },
}


@pytest.mark.parametrize("task", LRA)
def test_every_task_of_the_lra_has_the_data_of_the_benchmark(task):
    common = {"name": task, "data_dir": None, "source_dir": None}
    expected = {**common, **TASK_SETTINGS[task]}
    settings = settings_of(flat(task, ""), "task")
    assert settings == {f"task.{key}": value for key, value in expected.items()}


def test_pathx_is_pathfinder_at_a_sixteenth_of_the_batch():
    assert flat("pathx", "") == {
        **flat("pathfinder", ""),
        "task.name": "pathx",
        "task.max_length": 16_384,
        "task.resolution": 128,
        "optimizer.warmup_steps": 312,
        "train.batch_size": 16,
        "train.num_steps": 62_400,
        "train.eval_every": 3_120,
        "train.checkpoint_every": 3_120,
    }
    gpu = {**model(dtype="bfloat16", remat="block"), **train(batch_size=32)}
    check_settings("pathx", "gpu", gpu)


@pytest.mark.parametrize("preset", ["as_published", "gpu,as_published"])
def test_pathx_as_published_is_pathfinder_as_published(preset):
    published = {
        **model(pooling="padded_mean", ignore_id=0),
        **attention(landmark_padding="count", pinv_init="per_batch"),
        "optimizer.cycle_b1": True,
    }
    base = preset.replace("as_published", "")
    check_settings("pathx", preset, published, base=base)


# No paper has trained these models on these tasks, so the settings are ours.
BASE = {
    "recall": {
        **SETTINGS_OF_ALL_TASKS,
        **model(ignore_id=None),
        **objective(name="positions"),
        **model(dropout_rate=0.0, short_conv=3),
        **optimizer(learning_rate=2e-3, warmup_steps=50, decay="none"),
        **train(batch_size=64, num_steps=4_000, eval_every=500, checkpoint_every=500),
    },
    "labelled_texts": {
        **SETTINGS_OF_ALL_TASKS,
        **model(ignore_id=None),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(batch_size=32, num_steps=5_000, eval_every=250, checkpoint_every=250),
    },
}
TASK_SETTINGS_OF_BASE = {
    "recall": {
        "max_length": 256,
        "num_pairs": 64,
        "num_keys": 128,
        "num_values": 128,
        "num_distractors": 16,
        "num_queries": 64,
        "num_train": 64_000,
        "num_validation": 2_000,
        "num_test": 2_000,
        "seed": 0,
    },
    "labelled_texts": {
        "max_length": 1_024,
        "labels": "0,1",
        "text_column": "text",
        "label_column": "label",
        "num_bytes": None,
        "tokenizer": None,
        "seed": 0,
    },
}
ATTENTION_OPTIONS_OF_RECALL = {
    "nystrom": {"num_landmarks": 64, "conv_kernel_size": 0},
    "linformer": {"projection_dim": 64},
    "performer": {"num_features": 64},
    "reformer": {"bucket_size": 64},
    "longformer": {"window": 64},
    "bigbird": {"block_size": 64},
}


@pytest.mark.parametrize("task", BASE)
def test_base_has_the_settings_of_the_runs_on_a_task_without_a_paper(task):
    settings = flat(task, "")
    groups = ("model", "optimizer", "train", "objective")
    assert settings_of(settings, *groups) == BASE[task]
    common = {"name": task, "data_dir": None, "source_dir": None}
    expected = {**common, **TASK_SETTINGS_OF_BASE[task]}
    assert settings_of(settings, "task") == {
        f"task.{key}": value for key, value in expected.items()
    }


@pytest.mark.parametrize("name", ATTENTION_OPTIONS)
def test_recall_has_one_size_for_all_attentions_and_no_convolution_of_v(name):
    changes = ATTENTION_OPTIONS_OF_RECALL.get(name, {})
    assert settings_of(flat("recall", name), "attention") == attention(
        name=name, by_layer=None, **(ATTENTION_OPTIONS[name] | changes)
    )
