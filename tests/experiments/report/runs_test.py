"""How runs are found, named and ordered."""

import json
import math

import pytest

from lra_tasks.task import TASKS
from nystromformer.errors import ConfigError
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.report_page import write_report
from nystromformer.experiments.report.runs import (
    TASK_ORDER,
    make_frame,
    sort_key,
)
from nystromformer.experiments.run import write_json
from tests.experiments.report.conftest import (
    SOFTMAX,
    Runs,
    delete_settings,
    set_settings,
)
from tests.small import make_config


def labels(runs, task="listops"):
    frame = runs.read()
    return list(dict.fromkeys(frame["label"][frame["task"] == task]))


def test_rows_and_columns_have_the_order_of_the_tables():
    built_in_tasks = [x for x in TASKS if isinstance(TASKS[x], str)]
    assert tuple(built_in_tasks) == TASK_ORDER


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


def test_sort_key_orders_numbers_with_points_by_their_values():
    rates = ["rate 1e-12", "rate 1e-05", "rate 0.0005", "rate 0.01", "rate 8"]
    shuffled_rates = rates[2:] + rates[:2]
    assert sorted(shuffled_rates, key=sort_key) == rates


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


def test_make_frame_counts_what_a_sweep_has_planned(runs):
    begun = runs.add("nystrom,quick", 0.5)
    later = make_config("nystrom,quick", train__seed=1).to_mapping()
    write_json(runs.folder / "sweep.json", {begun.name: later, "later": later})
    # The config in a run's own folder is read before that of the sweep.
    frame = runs.read()
    assert list(frame["run"]) == [f"runs/{begun.name}", "runs/later"]
    assert list(frame["seed"]) == [0, 1]
    assert list(frame["finished"]) == [True, False]
    assert list(frame["step"]) == [100, 0]


def test_make_frame_names_a_row_alike_before_and_after_its_epochs_are_counted(runs):
    """A run that counts epochs knows its steps once its data are there."""
    for seed, num_steps in ((0, 42_180), (1, 0)):
        changes = {"train__num_epochs": 4.0, "train__num_steps": num_steps}
        workdir = runs.add("nystrom,quick", seed=seed, **changes)
        delete_settings(workdir, "overrides.train.num_steps")
    assert labels(runs) == ["nystrom"]
    assert list(runs.read()["num_steps"]) == [42_180, 0]


def test_make_frame_takes_a_setting_that_a_run_lacks_for_its_default(runs):
    old = runs.add("nystrom,quick", 0.5)
    runs.add("nystrom,quick", 0.5, seed=1)
    delete_settings(old, "model.short_conv", "train.flip_horizontal")
    assert labels(runs) == ["nystrom"]

    runs.add("nystrom,quick", 0.5, seed=2, model__short_conv=3)
    assert labels(runs) == [
        "nystrom",
        "nystrom, model.short_conv=3",
    ]


def test_make_frame_takes_an_attentions_option_that_a_run_lacks_for_its_default(runs):
    old = runs.add("softmax,quick", 0.5)
    runs.add("softmax,quick", 0.5, seed=1)
    runs.add("nystrom,quick", 0.5)
    delete_settings(old, "attention.fused", "attention.by_layer")
    assert labels(runs) == ["nystrom", SOFTMAX]

    runs.add("softmax,quick", 0.5, seed=2, attention__fused=False)
    softmax = [f"{SOFTMAX}, fused={is_fused}" for is_fused in (False, True)]
    assert labels(runs)[1:] == softmax


def test_make_frame_gives_no_attention_the_options_of_another(runs):
    """A setting that a run has no use for must not stand among its settings."""
    old = runs.add("softmax,quick", 0.5)
    runs.add("softmax,quick", 0.5, seed=1)
    runs.add("nystrom,quick", 0.5)
    delete_settings(old, "attention.fused")
    for _, run in runs.read().iterrows():
        has_landmarks = "attention.num_landmarks" in run["settings"]
        assert has_landmarks == (run["attention"] == "nystrom")


def test_make_frame_knows_no_binomial_deviation_of_labels_within_an_example(runs):
    runs.add("nystrom,quick", 0.5)
    workdir = runs.add("softmax,quick", 0.5)
    set_settings(workdir, {"objective.name": "positions"})
    deviation_of_examples, deviation_of_labels = runs.read()["score_sd"]
    assert deviation_of_examples == pytest.approx(100 * (0.25 / 2000) ** 0.5)
    assert math.isnan(deviation_of_labels)


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


def test_make_frame_names_presets_where_there_are_several(runs):
    runs.add("nystrom,quick")
    runs.add("nystrom")
    assert labels(runs) == ["nystrom, preset=paper", "nystrom, preset=quick"]


def test_make_frame_takes_runs_that_are_older_than_what_is_recorded(runs):
    """They are scored and told apart."""
    for arg, test, length in (("nystrom", 0.5, 2000), ("linformer", 0.4, 2048)):
        workdir = runs.add(arg, test, task__max_length=length)
        config = json.loads((workdir / "config.json").read_text())
        for key in ("preset", "overrides", "load"):
            del config[key]
        write_json(workdir / "config.json", config)
        result = json.loads((workdir / "result.json").read_text())
        for key in ("command", "fraction_exact"):
            del result[key]
        result["data_sha256"] = {"test": f"of {length}"}
        write_json(workdir / "result.json", result)
    write_report([runs.folder], runs.folder.parent / "out")
    runs.add("linear", 0.3, result={"data_sha256": {"test": "of 2000"}})
    frame = runs.read()
    assert list(frame["label"]) == [
        "nystrom, max_length=2000",
        "linear, preset=paper",
        "linformer, max_length=2048",
    ]
    assert list(frame["score"]) == [50, 30, 40]


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


def test_make_frame_gives_an_older_run_the_defaults_of_its_task(runs):
    older = runs.add("softmax,quick", 0.5, task="pathfinder")
    delete_settings(older, "task.easier_share")
    runs.add("softmax,quick", 0.6, task="pathfinder", seed=1)
    assert set(runs.read()["data"]) == {""}


def test_make_frame_names_folders_of_other_texts(runs):
    for folder in ("/here/spam", "/there/spam", "/here/reviews"):
        changes = {"task__source_dir": folder, "task__labels": ("no", "yes")}
        seed = int(folder == "/there/spam")
        runs.add("softmax", task="labelled_texts", seed=seed, **changes)
    assert labels(runs, "labelled_texts") == [
        f"{SOFTMAX}, source_dir={name}" for name in ("reviews", "spam")
    ]


def test_make_frame_has_the_devices_and_commits_of_all_sessions(runs):
    """The last one may have trained few of the steps whose speed a row has."""
    last = {"device": "CPU", "commit": "b1"}
    sessions = [{"device": "H200", "commit": "a0"}, last, last]
    runs.add("nystrom,quick", 0.5, result={**last, "sessions": sessions})
    runs.add("softmax,quick", 0.5, result={**last, "sessions": [last]})
    frame = runs.read()
    assert list(frame["device"]) == ["H200, then CPU", "CPU"]
    assert list(frame["commit"]) == ["a0, then b1", "b1"]


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
    with pytest.raises(ConfigError, match=r"entries in sweep.json: runs/00, runs/01$"):
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
