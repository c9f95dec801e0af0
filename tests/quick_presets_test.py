"""The presets `quick`, and those of Recall, with which results were trained.

Each table has every key that its preset changes: a change that is not in it fails.
"""

import functools

import pytest
from flax.traverse_util import flatten_dict

from configs.defaults import attention, optimizer, train
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.report.records import read_records
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT
from tests.bert_presets_test import BERT_QUICK
from tests.commands import ROOT
from tests.presets import check_settings, flat

# Nobody has published these; README.md and results/ have the numbers of their runs.
QUICK = {
    "listops": {
        "task.max_length": 48,
        "task.min_tokens": 24,
        "task.max_tokens": 48,
        "task.max_depth": 3,
        "task.max_args": 6,
        **attention(num_landmarks=6),
        **optimizer(learning_rate=1e-3, warmup_steps=300),
        **train(num_steps=12_000, eval_every=1_000, checkpoint_every=1_000),
    },
    "text": {
        "task.max_length": 512,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    "retrieval": {
        "task.max_length": 256,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    "image": {
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(batch_size=32, num_steps=1_000, eval_every=500, checkpoint_every=500),
    },
    "pathfinder": {
        "task.difficulty": "easy",
        "task.num_examples": 5_000,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(batch_size=32, num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
    # It only shows that all of it runs.
    "pathx": {
        "task.num_examples": 100,
        **optimizer(learning_rate=1e-3, warmup_steps=5),
        **train(batch_size=2, num_steps=20, eval_every=10, checkpoint_every=20),
    },
    "recall": {
        "task.max_length": 192,
        "task.num_pairs": 16,
        "task.num_train": 16_000,
        "task.num_validation": 500,
        "task.num_test": 500,
        **attention(num_landmarks=16),
        **train(batch_size=32, num_steps=500, eval_every=250, checkpoint_every=250),
    },
    "corpus": {
        "task.max_length": 64,
        "task.vocab_size": 8_192,
        **BERT_QUICK,
        **attention(num_landmarks=16),
        **optimizer(learning_rate=1e-3, warmup_steps=200),
        **train(batch_size=64, num_steps=2_000, eval_every=250, checkpoint_every=250),
    },
    "labelled_texts": {
        "task.max_length": 512,
        **attention(num_landmarks=32),
        **optimizer(learning_rate=1e-3, warmup_steps=100),
        **train(num_steps=1_000, eval_every=250, checkpoint_every=500),
    },
}
# The options of the other attentions, for which short sequences are long with them.
OTHER_ATTENTIONS = {
    "listops": {
        "linformer.projection_dim": 12,
        "longformer.window": 8,
        "bigbird.block_size": 4,
        "reformer.bucket_size": 8,
    },
    "text": {
        "linformer.projection_dim": 64,
        "longformer.window": 64,
        "bigbird.block_size": 32,
        "reformer.bucket_size": 64,
    },
    "retrieval": {
        "linformer.projection_dim": 32,
        "longformer.window": 32,
        "bigbird.block_size": 16,
        "reformer.bucket_size": 32,
    },
    "recall": {
        "linformer.projection_dim": 16,
        "performer.num_features": 16,
        "longformer.window": 16,
        "bigbird.block_size": 16,
        "reformer.bucket_size": 16,
    },
    "corpus": {
        "linformer.projection_dim": 16,
        "longformer.window": 16,
        "bigbird.block_size": 8,
        "reformer.bucket_size": 16,
    },
    "glue": {
        "linformer.projection_dim": 64,
        "longformer.window": 32,
        "bigbird.block_size": 16,
        "reformer.bucket_size": 64,
    },
}


@pytest.mark.parametrize("task", QUICK)
def test_quick_changes_the_settings_of_its_table_alone(task):
    check_settings(task, "quick", QUICK[task])


@pytest.mark.parametrize("task", OTHER_ATTENTIONS)
def test_quick_makes_short_sequences_long_for_every_attention(task):
    for path, value in OTHER_ATTENTIONS[task].items():
        name, _, option = path.partition(".")
        assert flat(task, f"{name},quick")[f"attention.{option}"] == value


settings_of = functools.cache(flat)
# The recorded runs of these tasks read all pixels, which was the default.
PRESET_OF_RECORDS = {"image": "all_pixels", "pathfinder": "all_pixels"}
# Until 1347df84 bigbird and reformer had a seed of their own.
OPTIONS_OF_OLD_RECORDS = {"attention.seed"}


@pytest.mark.parametrize("folder", ["listops_short", "quick_tasks", "recall"])
def test_presets_have_the_settings_of_recorded_runs(folder):
    """A setting that a record does not have is newer than the record."""
    for run in read_records([ROOT / "results" / folder]):
        record = run["config"]
        task_name = record["task"]["name"]
        attention_name = record["attention"]["name"]
        if attention_name not in ATTENTIONS:
            continue  # It is the one of examples/custom.py.

        overrides = record.pop("overrides")
        preset = f"{record.pop('preset')},{PRESET_OF_RECORDS.get(task_name, '')}"
        settings = settings_of(task_name, f"{attention_name},{preset}")
        expected = settings | overrides
        for key, value in flatten_dict(record, sep=".").items():
            if key not in SETTINGS_WITHOUT_EFFECT | OPTIONS_OF_OLD_RECORDS:
                assert expected[key] == value, f"{key} of {run['run']}"


RECALL = {
    "medium": {
        "task.max_length": 1_024,
        "task.num_pairs": 256,
        "task.num_keys": 512,
        "task.num_queries": 256,
        **train(num_steps=8_000),
    },
    "long": {
        "task.max_length": 4_096,
        "task.num_pairs": 1_024,
        "task.num_keys": 2_048,
        "task.num_queries": 1_024,
        "task.num_train": 16_000,
        "task.num_validation": 500,
        "task.num_test": 500,
        **train(batch_size=32, num_steps=8_000),
    },
    "one_query": {
        "task.max_length": 33,
        "task.num_pairs": 16,
        "task.num_keys": 32,
        "task.num_values": 16,
        "task.num_queries": 1,
        "task.num_train": 32_000,
        "task.num_validation": 1_000,
        "task.num_test": 1_000,
        "objective.name": "classification",
        "model.pooling": "last",
        **attention(num_landmarks=8),
        **train(batch_size=64, num_steps=500, eval_every=100, checkpoint_every=500),
    },
}


@pytest.mark.parametrize("preset", RECALL)
def test_presets_of_recall_change_its_data_and_steps(preset):
    check_settings("recall", preset, RECALL[preset])


def test_quick_pretraining_goes_on_at_twice_the_length():
    longer = {
        "task.max_length": 128,
        **optimizer(learning_rate=1e-4, warmup_steps=0),
        **train(batch_size=32, num_steps=1_000),
    }
    check_settings("corpus", "quick,seq1024", longer, base="quick")
