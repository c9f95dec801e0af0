"""Starting from another run: what is carried over, what is new, what is refused."""

import shutil
import signal
import time
from typing import Any

import numpy as np
import pytest

from lra_tasks import subwords
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.trained_run import load_run
from nystromformer.experiments.transfer import (
    EMBEDDING,
    POSITIONS,
    carry_over,
    follow_source,
)
from nystromformer.run_files import CONFIG_FILE, write_json
from nystromformer.training.checkpoint import saved_steps
from nystromformer.training.step import leaves_by_name
from tests.small import make_config, result_of, untrained

PRETRAIN = "nystrom,quick,pretrain"

SIZES: Any = {
    "model__num_layers": 1,
    "model__model_dim": 8,
    "model__mlp_dim": 8,
    "train__init_from": "/somewhere/source",
}


def small(arg="nystrom,quick", task="listops", **changes):
    """A small experiment that starts from another run."""
    return Experiment(make_config(arg, task, **SIZES | changes))


def test_carry_over_takes_the_encoder_and_prints_the_rest(capsys):
    source = untrained(PRETRAIN, **SIZES)
    carried = carry_over(source, small())
    printed = capsys.readouterr().out
    assert "new: params.head.hidden.bias" in printed
    assert "dropped: params.bias, params.norm.bias" in printed

    expected = leaves_by_name(source.weights)
    encoder_names = {name for name in expected if name.startswith("params.encoder.")}
    assert encoder_names == carried.keys()
    # The last row is the mask token's.
    expected[EMBEDDING] = expected[EMBEDDING][:-1]
    for name, leaf in carried.items():
        np.testing.assert_array_equal(leaf, expected[name])


@pytest.mark.parametrize("length", [90, 30])
def test_carry_over_repeats_or_cuts_positions(length):
    source = untrained("nystrom,quick", **SIZES)
    target = small(
        task__max_length=length,
        task__min_tokens=4,
        task__max_tokens=30,
        train__position_repeats=2,
    )
    positions = carry_over(source, target)[POSITIONS]
    source_positions = leaves_by_name(source.weights)[POSITIONS]
    expected = np.tile(source_positions, (2, 1))[:length]
    np.testing.assert_array_equal(positions, expected)


@pytest.mark.parametrize("arg", ["nystrom,quick", PRETRAIN])
def test_carry_over_repeats_positions_as_often_as_the_user_allows(arg):
    source = untrained(arg, **SIZES)
    num_positions = source.task.max_length
    longer = {"task__max_length": 3 * num_positions}
    assert POSITIONS in carry_over(source, small(arg, **longer, **repeats(3)))
    message = (
        "source has 48 positions, and task.max_length is 144: take "
        "--config.task.max_length=48, or .* by --config.train.position_repeats=3$"
    )
    for changes in ({}, repeats(2)):
        with pytest.raises(ConfigError, match=message):
            carry_over(source, small(arg, **longer, **changes))


def repeats(number):
    return {"train__position_repeats": number}


def test_carry_over_leaves_the_parameters_of_another_attention(capsys):
    source = untrained("nystrom,quick", **SIZES)
    carried = carry_over(source, small("linformer,quick"))
    assert not [name for name in carried if ".attention.attention." in name]
    dropped = capsys.readouterr().out.partition("dropped")[2]
    assert "attention.attention.conv" in dropped


def test_carry_over_takes_what_the_same_attention_has_drawn():
    source = untrained("bigbird,quick", **SIZES)
    leaves = leaves_by_name(source.weights)
    [key] = [name for name in leaves if name.endswith("random_key")]
    carried = carry_over(source, small("bigbird,quick"))
    np.testing.assert_array_equal(carried[key], leaves[key])
    softmax = untrained("softmax,quick", **SIZES)
    assert key not in carry_over(softmax, small("bigbird,quick"))


def test_carry_over_compares_the_attentions_layer_by_layer(capsys):
    """A layer keeps its convolution, and one that had none gets a new one."""
    sizes = {**SIZES, "model__num_layers": 2}
    source = untrained("nystrom,quick", attention__by_layer="0=softmax", **sizes)
    changes = {"model__num_layers": 2}
    carried = carry_over(source, small(**changes))
    printed = capsys.readouterr().out
    first = "params.encoder.blocks.0.attention.attention.conv_kernel"
    second = "params.encoder.blocks.1.attention.attention.conv_kernel"
    num_carried = len(carried)
    assert f"{num_carried} arrays carried over; new: {first}; dropped: none" in printed
    np.testing.assert_array_equal(
        carried[second], leaves_by_name(source.weights)[second]
    )

    changes["attention__by_layer"] = "1.conv_kernel_size=0"
    message = rf"{second} is missing here and \[.*\] there"
    with pytest.raises(ConfigError, match=message):
        carry_over(source, small(**changes))
    changes["attention__by_layer"] = "1=softmax"
    assert second not in carry_over(source, small(**changes))


@pytest.mark.parametrize(
    ("arg", "changes", "message"),
    [
        # The same attention has the same parameters of its own.
        (
            "linformer,quick",
            {"task__max_length": 96, "train__position_repeats": 2},
            r"projection.* is \[.*\] here",
        ),
        ("nystrom,quick", {"attention__conv_kernel_size": 0}, r"conv.* missing here"),
        # An embedding is not repeated as positions are.
        (PRETRAIN, {}, r"embedding is \[17, 8\] here and \[16, 8\] there"),
        ("nystrom,quick", {"model__model_dim": 16}, r"is \[16\] here and \[8\] there"),
        ("nystrom,quick", {"model__num_layers": 2}, "missing there: take the source's"),
        ("nystrom,quick", {"model__num_heads": 4}, "num_heads 2, and this run 4: take"),
        ("nystrom,quick", {"model__positions": "none"}, "learned, and this run none"),
        ("nystrom,quick", {"model__short_conv": 3}, "short_conv.* missing there"),
        ("nystrom,quick", {"model__pooling": "cls_token"}, "cls is .*, pooling$"),
    ],
)
def test_carry_over_rejects_another_encoder(arg, changes, message):
    source = untrained(arg.removesuffix(",pretrain"), **SIZES)
    with pytest.raises(ConfigError, match=message):
        carry_over(source, small(arg, **changes))


def test_carry_over_rejects_other_tokens():
    with pytest.raises(ConfigError, match="vocabulary 16, and this run 257: take the"):
        carry_over(untrained("nystrom,quick", **SIZES), small(task="text"))


def test_carry_over_rejects_other_sub_words_of_the_same_number(tmp_path):
    """Of equal shapes; equal ones under another name are the same."""
    for name, text in (("one", "abc abd abe "), ("other", "xyz xyw xyv ")):
        (tmp_path / name).mkdir()
        subwords.train([9 * text], 265, tmp_path / name / "tokenizer.json")
    shutil.copytree(tmp_path / "one", tmp_path / "moved")

    def tokenizer(name):
        return {"task__tokenizer": str(tmp_path / name / "tokenizer.json"), **SIZES}

    source = untrained("nystrom,quick", "glue", **tokenizer("one"))
    same = small("nystrom,quick", "glue", **tokenizer("moved"))
    other = small("nystrom,quick", "glue", **tokenizer("other"))
    assert same.task.vocab_size == other.task.vocab_size == 265
    assert EMBEDDING in carry_over(source, same)
    with pytest.raises(ConfigError, match=r"vocabulary 265 of .*, and this run 265 of"):
        carry_over(source, other)


def test_follow_source_knows_the_defaults_of_settings_that_a_config_lacks(tmp_path):
    source = make_config("nystrom,quick", "glue", model__mlp_dim=8).to_mapping()
    changes = {"task__max_length": 300, "train__position_repeats": 1}
    changes["train__init_from"] = str(tmp_path)
    own = make_config("nystrom,quick", "glue", **changes).to_mapping()
    del source["attention"]["conv_kernel_size"]
    del source["task"]["max_length"]
    write_json(tmp_path / CONFIG_FILE, source)
    config = follow_source(Config.from_mapping(own))
    assert config.model.mlp_dim == 8
    assert config.attention.options["conv_kernel_size"] == 0
    assert config.task.options["max_length"] == 128

    del own["attention"]["conv_kernel_size"]
    del own["task"]["max_length"]
    config = follow_source(Config.from_mapping(own))
    assert config.model.mlp_dim == 8


@pytest.mark.slow
def test_train_begins_with_its_source_and_goes_on_without(commands, tmp_path):
    source = tmp_path / "source"
    run = tmp_path / "run"
    steps = "--config.train.num_steps=20", "--config.train.eval_every=20"
    config, *args = commands.train_args(source, *steps)
    done = commands.run("train.py", f"{config},pretrain", *args)
    assert "floor" in done.stdout, done.stderr
    old = load_run(source)
    frozen = "--config.optimizer.learning_rate=1e-20"
    changes = f"--config.train.init_from={source}", "--config.train.num_steps=120"
    args = commands.train_args(run, *changes, frozen)
    process = commands.start("train.py", *args)
    while not saved_steps(run):
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    shutil.rmtree(source)
    done = commands.run("train.py", *args)
    assert "resuming from step" in done.stdout, done.stderr
    assert result_of(run)["init_from_sha256"] == old.result["params_sha256"]
    source_positions = leaves_by_name(old.weights)[POSITIONS]
    positions = leaves_by_name(load_run(run).weights)[POSITIONS]
    np.testing.assert_allclose(positions, source_positions, atol=1e-12)
