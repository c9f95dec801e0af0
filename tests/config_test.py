"""The schema: a good mapping comes back as it went in, any other is one line."""

import json

import numpy as np
import pytest

from configs import listops
from nystromformer.config import Config
from nystromformer.errors import ConfigError


def mapping(arg: str = "nystrom") -> dict:
    """The config of ListOps, as the trainer saves it."""
    return {**listops.get_config(arg).to_dict(), "overrides": {}}


def changed(path: str, value: object) -> dict:
    result = mapping()
    group, key = path.split(".")
    result[group][key] = value
    return result


@pytest.mark.parametrize("arg", ["nystrom", "softmax,quick", "identity", "quick", ""])
def test_to_mapping_is_the_inverse_of_from_mapping(arg):
    config = Config.from_mapping(mapping(arg))
    assert config.to_mapping() == mapping(arg)
    assert Config.from_mapping(json.loads(json.dumps(config.to_mapping()))) == config


BAD = [
    ("train.num_step", 5, r"unknown key config\.train\.num_step; known: .*num_steps"),
    ("model.vocab_size", 5, r"unknown key config\.model\.vocab_size; known: "),
    ("train.num_steps", "5", r"config\.train: num_steps must be int, got '5'"),
    ("train.batch_size", True, r"config\.train: batch_size must be int, got True"),
    ("train.num_steps", 0, r"config\.train: give num_steps or num_epochs"),
    ("train.seed", -1, r"config\.train: seed must be at least 0, got -1"),
    ("train.eval_every", 0, r"config\.train: eval_every must be at least 1, got 0"),
    ("train.max_eval_examples", 0, "max_eval_examples must be at least 1, got 0"),
    ("train.grad_accum_steps", 5, "steps 5 does not divide batch_size 32"),
    ("train.init_from", 3, r"config\.train: init_from must be str \| None, got 3"),
    ("model.dtype", "float16", r"config\.model: dtype must be one of .*'float16'"),
    ("model.dropout_rate", 1.0, r"config\.model: dropout_rate must be in \[0, 1\)"),
    ("model.model_dim", 65, "config.model: num_heads 2 does not divide model_dim 65"),
    ("model.short_conv", 4, "short_conv must be odd, or 0 for none, got 4"),
    ("model.short_conv", -1, "config.model: short_conv must be odd, or 0 for none"),
    ("model.positions", "absolute", "positions must be one of .*'absolute'"),
    ("optimizer.decay", "cosine", r"optimizer: decay must be one of .*'cosine'"),
    ("optimizer.cycle_b1", 1, r"config\.optimizer: cycle_b1 must be bool, got 1"),
    ("optimizer.warmup_steps", 6000, "by --config.optimizer.warmup_steps=500"),
    ("optimizer.b1", 2.0, r"config\.optimizer: b1 must be in \[0, 1\), got 2"),
    ("optimizer.b2", 1.0, r"config\.optimizer: b2 must be in \[0, 1\), got 1"),
    ("optimizer.learning_rate", -1.0, r"learning_rate must be at least 0, got -1"),
    (
        "optimizer.learning_rate",
        float("nan"),
        "learning_rate must be at least 0, got nan",
    ),
    ("optimizer.weight_decay", -0.1, r"weight_decay must be at least 0, got -0\.1"),
    ("train.num_epochs", -3.0, r"config\.train: num_epochs must be at least 0, got -3"),
    ("task.data_dir", 3, r"config\.task: data_dir must be str \| None, got 3"),
    ("attention.name", "flash", r"unknown attention 'flash'; known: .*nystrom"),
    ("attention.landmark", 3, r"Nystrom.* has no option 'landmark'; .*landmarks"),
    (
        "attention.by_layer",
        "softmax nystrom",
        r"by_layer must be LAYER=.* got 'softmax n",
    ),
    ("attention.by_layer", "1.window=4", r"layer 1: Nystrom.* no option 'window'"),
    ("attention.by_layer", 3, r"by_layer must be str \| None, got 3"),
    ("attention.num_landmarks", 2.5, r"num_landmarks of .* must be int, got 2\.5"),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD)
def test_from_mapping_rejects_in_one_line_that_names_the_key(path, value, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Config.from_mapping(changed(path, value))
    assert "\n" not in str(caught.value)


def test_from_mapping_rejects_rotary_positions_of_an_odd_head_size():
    odd = changed("model.positions", "rotary")
    odd["model"] |= {"model_dim": 66, "num_heads": 2}
    message = r"'rotary' needs an even head size, got model_dim / num_heads = 33$"
    with pytest.raises(ConfigError, match=message):
        Config.from_mapping(odd)
    odd["model"]["positions"] = "learned"
    Config.from_mapping(odd)


def test_from_mapping_rejects_a_b1_that_the_cycle_replaces():
    cycled = changed("optimizer.cycle_b1", True)
    Config.from_mapping(cycled)
    cycled["optimizer"]["b1"] = 0.8
    message = r"optimizer: b1=0\.8 has no effect with cycle_b1=True"
    with pytest.raises(ConfigError, match=message):
        Config.from_mapping(cycled)


@pytest.mark.parametrize("group", ["train", "task", "attention"])
def test_from_mapping_rejects_a_group_that_is_none(group):
    message = rf"config\.{group} must be a group of keys, got 3"
    with pytest.raises(ConfigError, match=message):
        Config.from_mapping(mapping() | {group: 3})


def test_from_mapping_names_missing_keys():
    without_group = mapping()
    del without_group["model"]
    with pytest.raises(ConfigError, match=r"^config has no key model: add it$"):
        Config.from_mapping(without_group)

    without_keys = mapping()
    del without_keys["train"]["batch_size"]
    del without_keys["train"]["eval_every"]  # it has a default
    message = r"^config\.train has no key batch_size: add it$"
    with pytest.raises(ConfigError, match=message):
        Config.from_mapping(without_keys)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("nystrom", "landmark_padding", "count"), ("performer", "kernel", "published")],
)
def test_from_mapping_rejects_length_buckets_where_padding_matters(name, option, value):
    padded = changed("train.length_buckets", 2)
    Config.from_mapping(padded)
    padded["attention"] = {"name": name, option: value}
    message = f"attention.{option}='{value}' depends on .*length_buckets=1"
    with pytest.raises(ConfigError, match=message):
        Config.from_mapping(padded)


def test_from_mapping_rejects_length_buckets_where_padding_matters_in_a_layer():
    in_layer = changed("train.length_buckets", 2)
    in_layer["attention"]["by_layer"] = "1=performer 1.kernel=softmax"
    Config.from_mapping(in_layer)
    in_layer["attention"]["by_layer"] = "1=performer 1.kernel=published"
    with pytest.raises(ConfigError, match=r"attention\.kernel='published' depends on"):
        Config.from_mapping(in_layer)


@pytest.mark.parametrize("parts", ["grad_accum_steps", "length_buckets"])
@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("nystrom", "pinv_init", "per_batch"), ("performer", "kernel", "published")],
)
def test_from_mapping_rejects_parts_where_the_batch_matters(name, option, value, parts):
    in_parts = changed(f"train.{parts}", 2)
    in_parts["attention"] = {"name": name}
    Config.from_mapping(in_parts)
    in_parts["attention"][option] = value
    with pytest.raises(ConfigError, match=rf"attention\.{option}='{value}' depends on"):
        Config.from_mapping(in_parts)
    in_parts["train"][parts] = 1
    Config.from_mapping(in_parts)


def test_from_mapping_takes_the_numbers_of_numpy_and_saves_those_of_json():
    values = changed("train.num_steps", np.int64(7_000))
    values["attention"]["num_landmarks"] = np.int64(8)
    saved = json.loads(json.dumps(Config.from_mapping(values).to_mapping()))
    assert saved["train"]["num_steps"] == 7000
    assert saved["attention"]["num_landmarks"] == 8


def test_config_equality_ignores_where_a_run_came_from():
    config = Config.from_mapping(mapping("quick"))
    values = mapping("quick") | {"preset": "mine", "load": ["mine.py"]}
    values["task"]["data_dir"] = "/elsewhere"
    assert Config.from_mapping(values) == config
    assert Config.from_mapping(values).load == ["mine.py"]

    values["train"]["seed"] = 1
    assert Config.from_mapping(values) != config


def test_from_mapping_takes_a_config_without_a_preset():
    values = mapping("quick")
    del values["preset"]
    assert Config.from_mapping(values).preset == ""
