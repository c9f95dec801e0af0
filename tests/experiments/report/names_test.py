"""How the rows of a report are named."""

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from tests.experiments.report.conftest import (
    SOFTMAX,
    Runs,
    delete_settings,
    labels,
    set_settings,
)


def test_make_frame_names_by_the_settings_that_differ_and_orders_by_size(runs):
    for landmarks in (64, 128, 8):
        runs.add("nystrom,quick", attention__num_landmarks=landmarks)
    runs.add("softmax,quick", train__num_steps=700)
    assert labels(runs) == [
        "nystrom, num_landmarks=8",
        "nystrom, num_landmarks=64",
        "nystrom, num_landmarks=128",
        f"{SOFTMAX}, train.num_steps=700",
    ]


def test_make_frame_says_in_words_that_exact_attention_drops_weights(runs):
    """It drops some of its weights unless it is told not to."""
    runs.add("softmax,quick")
    assert labels(runs) == [SOFTMAX]
    runs.add("softmax,quick", attention__dropout_rate=0.0)
    runs.add("identity,quick")
    runs.add("identity,quick", model__short_conv=35)
    runs.add("nystrom,quick")
    runs.add("nystrom,quick", attention__conv_kernel_size=0)
    assert labels(runs) == [
        "nystrom, conv_kernel_size=0",
        "nystrom, conv_kernel_size=35",
        "softmax, dropout 0.0 on its weights",
        SOFTMAX,
        "identity",
        "identity, model.short_conv=35",
    ]


def test_make_frame_names_the_attention_of_single_layers(runs):
    runs.add("nystrom,quick")
    runs.add("nystrom,quick", attention__by_layer="0=softmax")
    assert labels(runs) == ["nystrom", "nystrom, by_layer=0=softmax"]


def test_make_frame_names_what_one_attentions_commands_change(runs):
    changes = {"train__num_steps": 700}
    runs.add("nystrom,quick", 0.5)
    runs.add("softmax,quick", 0.4, **changes)
    runs.add("softmax,quick", seed=1, **changes)  # unfinished
    runs.add("nystrom,quick", 0.5, task="image", **changes)
    assert labels(runs) == ["nystrom, train.num_steps=12000", SOFTMAX]
    assert labels(runs, "image") == ["nystrom"]


def test_make_frame_names_what_a_config_file_changed_between_two_attentions(runs):
    """No command line shows it, and no attention has two values of it."""
    runs.add("nystrom,quick", 0.5)
    edited = runs.add("softmax,quick", 0.6)
    set_settings(edited, {"train.num_steps": 700, "task.max_length": 40})
    frame = runs.read()
    softmax = f"{SOFTMAX}, train.num_steps=700"
    assert list(frame["row"]) == ["nystrom, train.num_steps=12000", softmax]
    assert list(frame["data"]) == ["max_length=48", "max_length=40"]


def test_make_frame_names_no_option_that_is_newer_than_a_run(runs):
    old = runs.add("nystrom,quick", 0.5)
    runs.add("softmax,quick", 0.6)
    delete_settings(old, "task.seed")
    assert labels(runs) == ["nystrom", SOFTMAX]


def test_make_frame_names_how_a_batch_is_cut_only_within_an_attention(runs):
    """What is cut to fit the memory differs by nature from attention to attention."""
    runs.add("nystrom,quick", 0.5, train__grad_accum_steps=8)
    runs.add("softmax,quick", 0.5, train__grad_accum_steps=16)
    assert labels(runs) == ["nystrom", SOFTMAX]
    runs.add("nystrom,quick", 0.5, train__grad_accum_steps=4)
    cuts = [f"nystrom, train.grad_accum_steps={steps}" for steps in (4, 8)]
    assert labels(runs) == [*cuts, SOFTMAX]


def test_make_frame_leaves_out_what_most_runs_have(runs):
    for attention in ("nystrom", "softmax", "linear"):
        runs.add(f"{attention},quick")
    runs.add("linear,quick", train__num_steps=700)
    assert labels(runs) == ["nystrom", SOFTMAX, "linear", "linear, train.num_steps=700"]


def test_make_frame_names_a_row_alike_before_and_after_its_runs_end(runs):
    changes = {"train__num_steps": 400, "optimizer__warmup_steps": 5}
    for arg in ("nystrom,quick", "linear,quick"):
        for task in ("listops", "image"):
            runs.add(arg, 0.5, task=task, **changes)
    runs.add("linear,quick", seed=1, **changes)  # unfinished
    assert labels(runs) == labels(runs, "image") == ["nystrom", "linear"]


def test_make_frame_names_a_row_alike_before_and_after_its_epochs_are_counted(runs):
    """A run that counts epochs knows its steps once its data are there."""
    for seed, num_steps in ((0, 42_180), (1, 0)):
        changes = {"train__num_epochs": 4.0, "train__num_steps": num_steps}
        workdir = runs.add("nystrom,quick", seed=seed, **changes)
        delete_settings(workdir, "overrides.train.num_steps")
    assert labels(runs) == ["nystrom"]
    assert list(runs.read()["num_steps"]) == [42_180, 0]


def test_make_frame_names_an_attentions_options_in_all_tasks_if_in_one(runs):
    for landmarks in (16, 64):
        runs.add("nystrom,quick", attention__num_landmarks=landmarks)
    for rate in (1e-4, 3e-4):
        changes = {"attention__num_landmarks": 64, "optimizer__learning_rate": rate}
        runs.add("nystrom,quick", task="image", **changes)
    assert labels(runs) == ["nystrom, num_landmarks=16", "nystrom, num_landmarks=64"]
    assert labels(runs, "image") == [
        f"nystrom, num_landmarks=64, optimizer.learning_rate={rate}"
        for rate in ("0.0001", "0.0003")
    ]


def test_make_frame_names_presets_where_a_task_has_several(runs):
    runs.add("nystrom,quick")
    runs.add("nystrom", task="image")
    assert labels(runs) == labels(runs, "image") == ["nystrom"]
    runs.add("nystrom")
    assert labels(runs) == ["nystrom, preset=paper", "nystrom, preset=quick"]
    # Options that differ in one preset are not named in the other.
    runs.add("nystrom,quick", attention__num_landmarks=8)
    paper, *quick = labels(runs)
    assert paper == "nystrom, preset=paper"
    assert len(quick) == sum("num_landmarks=" in label for label in quick) == 2


def test_make_frame_takes_sources_of_ones_own_seed_for_one(runs):
    for seed in (1, 10):
        runs.add("nystrom,quick", seed=seed, train__init_from=f"/x/pretrain-seed{seed}")
    runs.add("nystrom,quick", seed=2)
    source = "train.init_from=pretrain-seed"
    assert labels(runs) == ["nystrom", f"nystrom, {source}*"]
    assert list(runs.read()["seed"]) == [2, 1, 10]
    for seed in (1, 10):
        runs.add("softmax,quick", seed=seed, train__init_from="/x/pretrain-seed1")
    # The name of a source may only begin with the seed of the run.
    runs.add("linear,quick", seed=1, train__init_from="/x/pretrain-seed10")
    assert labels(runs)[2:] == [
        f"{SOFTMAX}, {source}1",
        f"linear, {source}10",
    ]


def test_make_frame_names_folders_of_other_texts(runs):
    for folder in ("/here/spam", "/there/spam", "/here/reviews"):
        changes = {"task__source_dir": folder, "task__labels": ("no", "yes")}
        seed = int(folder == "/there/spam")
        runs.add("softmax", task="labelled_texts", seed=seed, **changes)
    assert labels(runs, "labelled_texts") == [
        f"{SOFTMAX}, source_dir={name}" for name in ("reviews", "spam")
    ]


def test_make_frame_takes_a_tokenizer_for_the_same_where_its_folder_has_moved(runs):
    for seed, folder in enumerate(("/here", "/there")):
        file = f"{folder}/tokenizer.json"
        runs.add("linear,quick", task="text", seed=seed, task__tokenizer=file)
    assert labels(runs, "text") == ["linear"]


def test_make_frame_tells_equal_runs_of_two_folders_apart(runs, tmp_path):
    runs.add("nystrom,quick", 0.5)
    runs.add("nystrom,quick", 0.6, seed=1)
    again = Runs(tmp_path / "again")
    again.add("nystrom,quick", 0.7)
    frame = make_frame(read_records([runs.folder, again.folder]))
    assert list(frame["label"]) == ["nystrom, in again", *2 * ["nystrom, in runs"]]


def test_make_frame_refuses_two_runs_that_differ_in_nothing(runs):
    runs.add("nystrom,quick")
    runs.add("nystrom,quick", 0.5)
    runs.add("nystrom,quick", 0.6, seed=1)
    with pytest.raises(ConfigError, match=r"lines in runs.jsonl: runs/00, runs/01$"):
        runs.read()


@pytest.mark.parametrize("arg", ["softmax", "linear"])
def test_make_frame_has_a_column_for_each_test_split(runs, arg):
    """Runs of equal options may have seen different data, which are not compared."""
    runs.add("softmax", 0.5, result={"data_sha256": {"test": 64 * "a"}})
    runs.add(arg, 0.5, seed=1, result={"data_sha256": {"test": 64 * "b"}})
    words = ["test data aaaaaaaa", "test data bbbbbbbb"]
    assert sorted(runs.read()["data"]) == words
    runs.add(arg, seed=2, steps=())  # It has not seen any yet.
    assert sorted(runs.read()["data"]) == [*words, "test data unknown"]
