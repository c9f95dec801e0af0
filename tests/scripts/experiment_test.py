"""What a config says, as objects; and the workdir it may or may not use."""

import json

import pytest

from configs import listops
from configs.defaults import ATTENTIONS
from nystromformer.config import Config, ConfigError
from scripts.experiment import Experiment, open_workdir, read_config


def make_config(arg: str = "nystrom", **changes: object) -> Config:
    mapping = listops.get_config(arg).to_dict()
    for path, value in changes.items():
        group, key = path.split("__")
        mapping[group][key] = value
    return Config.from_mapping(mapping)


def test_the_paper_preset_has_the_parameters_counted_by_hand():
    d, f, classes, layers = 64, 128, 10, 2
    embeddings = 16 * d + 2000 * d
    block = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d + 35 * 2
    head = (d * f + f) + (f * classes + classes)
    by_hand = embeddings + layers * block + 2 * d + head
    assert Experiment.from_config(make_config()).num_params == by_hand


@pytest.mark.parametrize("attention", sorted(ATTENTIONS.keys() - {"none"}))
def test_every_attention_has_about_as_many_parameters_as_softmax(attention):
    exact = Experiment.from_config(make_config("softmax")).num_params
    found = Experiment.from_config(make_config(attention)).num_params
    if attention == "linformer":
        found -= 2 * 256 * 2000  # a projection [k, max_length] a layer
    assert abs(found / exact - 1) <= 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention__num_landmarks": 0}, "num_landmarks must be at least 1"),
        ({"attention__conv_kernel_size": 34}, "conv_kernel_size must be odd"),
        ({"model__remat": "all"}, "remat must be one of"),
        ({"model__pooling": "max"}, "pooling must be one of"),
    ],
)
def test_a_model_that_cannot_be_built_is_an_error_before_any_compile(changes, message):
    with pytest.raises(ConfigError, match=message):
        Experiment.from_config(make_config(**changes))


def test_a_new_workdir_gets_the_config_and_an_old_one_is_compared(tmp_path):
    workdir = tmp_path / "new" / "run"
    open_workdir(workdir, make_config())
    assert read_config(workdir) == make_config()
    open_workdir(workdir, make_config())
    with pytest.raises(ConfigError, match=r"train\.seed is 0 there, 7 here"):
        open_workdir(workdir, make_config(train__seed=7))
    with pytest.raises(ConfigError, match=r"attention\.name is 'nystrom' there"):
        open_workdir(workdir, make_config("softmax"))


def test_a_moved_run_may_find_its_data_elsewhere(tmp_path):
    open_workdir(tmp_path, make_config(task__data_dir="/here"))
    open_workdir(tmp_path, make_config(task__data_dir="/there"))


def test_a_half_written_config_is_an_error_that_names_the_file(tmp_path):
    open_workdir(tmp_path, make_config())
    path = tmp_path / "config.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"config\.json.* is not valid JSON"):
        open_workdir(tmp_path, make_config())
    path.write_text(json.dumps({"task": {}}))
    with pytest.raises(ConfigError, match=r"config\.json: config\.model is missing"):
        open_workdir(tmp_path, make_config())


def test_checkpoints_without_a_config_are_not_taken_over(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json"):
        open_workdir(tmp_path, make_config())
