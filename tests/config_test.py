"""The door: a good mapping comes back as it went in, any other ends in one line."""

import json

import pytest

from configs import listops
from nystromformer.config import Config, ConfigError


def mapping(arg: str = "nystrom") -> dict:
    return listops.get_config(arg).to_dict()


def changed(path: str, value: object) -> dict:
    result = mapping()
    group, key = path.split(".")
    result[group][key] = value
    return result


@pytest.mark.parametrize("arg", ["nystrom", "softmax,quick", "identity", "quick", ""])
def test_presets_pass_and_come_back_as_they_went_in(arg):
    config = Config.from_mapping(mapping(arg))
    for group, values in mapping(arg).items():
        assert config.to_mapping()[group].items() >= values.items()
    assert Config.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


BAD = {
    "train.num_step": (5, r"unknown key config\.train\.num_step; .* mean num_steps\?"),
    "train.sofa": (5, r"unknown key config\.train\.sofa; known: seed, .*num_steps"),
    "train.num_steps": ("5", r"config\.train\.num_steps: .* valid integer, got '5'"),
    "train.batch_size": (True, r"config\.train\.batch_size: .* integer, got True"),
    "train.seed": (-1, r"config\.train\.seed: .* greater than or equal to 0, got -1"),
    "model.num_layers": (20_000, r"num_layers: .* less than or equal to 64, got 20000"),
    "train.eval_every": (0, r"config\.train\.eval_every: .* greater than 0, got 0"),
    "train.grad_accum_steps": (
        5,
        r"batch_size=32 is not divisible by grad_accum_steps=5",
    ),
    "train.length_buckets": (17, r"length_buckets: .* less than or equal to 16"),
    "model.dtype": ("float16", r"dtype: .*'float32' or 'bfloat16', got 'float16'"),
    "model.dropout_rate": (
        1.0,
        r"dropout_rate: .* less than 1, got 1\.0",
    ),
    "model.model_dim": (65, r"model_dim=65 is not divisible by num_heads=2"),
    "optimizer.learning_rate": (
        float("nan"),
        "learning_rate: .* finite number",
    ),
    "optimizer.eps": (10**400, r"config\.optimizer\.eps: .*number"),
    "optimizer.weight_decay": (-0.1, "weight_decay: .* greater than or equal to 0"),
    "optimizer.warmup_steps": (6000, r"warmup_steps=6000 must lie .*num_steps=5000"),
    "task.data_dir": (3, r"config\.task\.data_dir: .* string, got 3"),
    "attention.name": ("flash", r"unknown attention 'flash'; known: .*nystrom"),
    "attention.landmark": (
        3,
        r"'nystrom' has no option 'landmark'; known: .*landmarks",
    ),
    "attention.num_landmarks": (2.5, r"'num_landmarks' .* must be int, got 2\.5"),
}


@pytest.mark.parametrize("path", BAD)
def test_what_cannot_work_is_one_line_that_names_the_key(path):
    value, message = BAD[path]
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_mapping(changed(path, value))
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_named():
    without_group, without_key = mapping(), mapping()
    del without_group["model"], without_key["train"]["seed"]
    with pytest.raises(ConfigError, match=r"config\.model is missing"):
        Config.from_mapping(without_group)
    with pytest.raises(ConfigError, match=r"config\.train\.seed is missing"):
        Config.from_mapping(without_key)


def test_a_workdir_from_before_an_option_means_its_default():
    older = mapping()
    del older["train"]["grad_accum_steps"], older["train"]["length_buckets"]
    del older["attention"]["pinv_init"]
    assert Config.from_mapping(older) == Config.from_mapping(mapping())


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("nystrom", "landmark_padding", "count"), ("performer", "kernel", "published")],
)
def test_batches_are_not_cut_where_padding_counts(name, option, value):
    padded = changed("train.length_buckets", 2)
    Config.from_mapping(padded)
    padded["attention"] = {"name": name, option: value}
    with pytest.raises(ConfigError, match=f'{option}="{value}" counts the padding'):
        Config.from_mapping(padded)


def test_a_whole_number_is_a_float_where_one_is_wanted():
    config = Config.from_mapping(changed("optimizer.weight_decay", 0))
    assert isinstance(config.optimizer.weight_decay, float)
