"""How runs are found, named, ordered, and judged against the floors."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.report.runs import floor_reached, read_runs


def labels(runs, task="listops"):
    frame = runs.read()
    return list(dict.fromkeys(frame["label"][frame["task"] == task]))


def test_read_runs_names_by_the_settings_that_differ_and_orders_by_size(runs):
    for landmarks in (64, 128, 8):
        runs.add("nystrom,quick", attention__num_landmarks=landmarks)
    runs.add("softmax,quick", train__num_steps=700)
    sizes = ["nystrom, 8 landmarks", "nystrom, 64 landmarks", "nystrom, 128 landmarks"]
    assert labels(runs) == [*sizes, "softmax"]


def test_read_runs_names_an_attentions_options_in_all_tasks_if_in_one(runs):
    for landmarks in (16, 64):
        runs.add("nystrom,quick", attention__num_landmarks=landmarks)
    for rate in (1e-4, 3e-4):
        changes = {"attention__num_landmarks": 64, "optimizer__learning_rate": rate}
        runs.add("nystrom,quick", task="image", **changes)
    assert labels(runs) == ["nystrom, 16 landmarks", "nystrom, 64 landmarks"]
    rates = [f"nystrom, 64 landmarks, learning_rate {x}" for x in ("0.0001", "0.0003")]
    assert labels(runs, "image") == rates


def test_read_runs_names_what_a_command_line_changes_in_the_attention(runs):
    flags = "--config.attention.num_landmarks=9 --config.train.seed=1"
    runs.add("nystrom,quick", 0.5, flags=flags, seed=1, attention__num_landmarks=9)
    runs.add("nystrom,quick", attention__num_landmarks=9)  # unfinished
    assert labels(runs) == ["nystrom, 9 landmarks"]


def test_read_runs_names_presets_where_there_are_several(runs):
    runs.add("nystrom,quick")
    runs.add("nystrom")
    assert labels(runs) == ["nystrom, paper preset", "nystrom, quick preset"]


def test_read_runs_names_a_config_without_preset_by_the_keys_that_differ(runs):
    for rate in (0.1, 0.2):
        file = runs.add("nystrom", optimizer__learning_rate=rate) / "config.json"
        file.write_text(file.read_text().replace('"preset": "paper"', '"preset": ""'))
    assert labels(runs) == ["nystrom, learning_rate 0.1", "nystrom, learning_rate 0.2"]
    assert set(runs.read()["settings"].str["preset"]) == {None}


def test_read_runs_takes_sources_of_ones_own_seed_for_one(runs):
    for seed in (1, 2):
        runs.add("nystrom,quick", seed=seed, train__init_from=f"/x/pretrain-seed{seed}")
    runs.add("nystrom,quick")
    assert labels(runs) == ["nystrom", "nystrom, from /x/pretrain-seed*"]


def test_read_runs_leaves_out_doubles_and_keeps_the_finished_one(runs):
    unfinished = runs.add("nystrom,quick")
    finished = runs.add("nystrom,quick", 0.5)
    double = runs.add("nystrom,quick", 0.6)
    frame, doubles = read_runs([runs.folder, finished])
    assert list(frame["score"]) == [50.0]
    assert doubles == [str(double), str(unfinished)]


def test_read_runs_reads_a_run_that_is_being_written(runs):
    workdir = runs.add("nystrom,quick")
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 150, "spl')
    (workdir / "checkpoints").mkdir()
    (workdir / "checkpoints" / "config.json").write_text("{}")
    frame = runs.read()
    assert frame[["step", "finished"]].to_numpy().tolist() == [[100, False]]


def test_read_runs_refuses_folders_without_runs(tmp_path):
    with pytest.raises(ConfigError, match="no runs there"):
        read_runs([tmp_path])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match=r"config\.json was not written by"):
        read_runs([tmp_path])


@pytest.mark.parametrize(
    ("metric", "value", "floor"),
    [
        # The standard deviation at 0.25 over 300 examples is 0.025.
        ("accuracy", 0.2999, "root operator"),
        ("accuracy", 0.3001, None),
        ("accuracy", 0.2001, "root operator"),
        ("accuracy", 0.19, None),
        ("accuracy", 0.01, "majority class"),  # worse than all
        ("nll", 0.24, None),
        ("nll", 0.26, "root operator"),  # the lower, the better
    ],
)
def test_floor_reached_is_within_two_standard_deviations(metric, value, floor):
    floors = {"majority class": 0.1, "root operator": 0.25}
    result = {"metric": metric, "floors": floors, "test_examples": 300}
    assert floor_reached(value, result) == floor
