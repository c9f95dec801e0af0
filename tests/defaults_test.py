"""How words make a config: presets in their order, and the options of an attention."""

import pytest

from configs.defaults import attention, make_config
from lra_tasks.task import task_class
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import Experiment
from tests import small
from tests.presets_test import CONFIGS, resolve

SIZED_ATTENTIONS = [
    name for name, cls in small.BUILT_IN_ATTENTIONS.items() if cls.size_option
]


@pytest.mark.parametrize("attention", SIZED_ATTENTIONS)
@pytest.mark.parametrize("task", CONFIGS)
def test_quick_options_fit_into_short_sequences(task, attention):
    """A config whose sizes do not fit is refused, whatever its number of layers."""
    finds_labels = "labels" in task_class(task).found_options
    # Without data it has to be told its classes.
    labels = {"task__labels": "ham,spam"} if finds_labels else {}
    Experiment(
        small.make_config(f"{attention},quick", task, model__num_layers=1, **labels)
    )


PRESETS = {
    "quick": {"train.seed": 1, "train.log_every": 1},
    "long": {"train.seed": 2, "train.log_every": 2},
    "quick,long": {"train.seed": 3},
    "wide": {"train.seed": 4, "attention.num_landmarks": 7, "attention.window": 5},
}


def merge_presets(arg):
    """The config of ListOps with PRESETS."""
    return make_config(
        arg, task="listops", settings={"train.batch_size": 8}, presets=PRESETS
    )


@pytest.mark.parametrize(
    ("arg", "preset", "seed", "log_every"),
    [
        ("long", "long", 2, 2),
        ("long,quick", "quick,long", 3, 1),
        ("quick,long", "quick,long", 3, 1),
        ("long,softmax,quick,wide", "quick,long,wide", 4, 1),
        ("", "paper", 0, 50),
        ("paper,nystrom", "paper", 0, 50),
    ],
)
def test_make_config_merges_presets_quick_first(arg, preset, seed, log_every):
    config = merge_presets(arg)
    assert config.preset == preset
    assert config.train.seed == seed
    assert config.train.log_every == log_every


def test_make_config_gives_an_attention_its_own_options_of_a_preset():
    assert merge_presets("wide").attention.num_landmarks == 7
    assert "window" not in merge_presets("wide").attention
    assert merge_presets("longformer,wide").attention.window == 5


def test_make_config_takes_none_for_the_default_which_a_flag_may_change():
    """A flag reads its value as the type of the key, which None does not have."""
    file = f"{small.CONFIGS}/image.py:nystrom,all_pixels"
    assert load_config(file).model.ignore_id is None
    assert load_config(file, {"model.ignore_id": 5}).model.ignore_id == 5


def test_make_config_names_an_option_that_no_attention_has():
    slips = {"slip": attention(num_landmark=7)}
    message = r"no attention has .* attention\.num_landmark; .*nystrom: num_landmarks, "
    with pytest.raises(ValueError, match=message):
        make_config("slip", task="listops", settings={}, presets=slips)


def test_make_config_takes_a_preset_given_twice_once():
    for arg in ("quick,quick", "quick,nystrom,quick"):
        assert resolve("listops", arg) == resolve("listops", "quick")
    twice = resolve("listops", "pretrain,as_published,pretrain")
    assert twice == resolve("listops", "as_published,pretrain")


@pytest.mark.parametrize("task", CONFIGS)
def test_smoke_is_a_run_of_a_few_steps_beside_any_preset(task):
    for preset in ["paper", *CONFIGS[task].PRESETS]:
        config = small.make_config(f"smoke,{preset}", task)
        presets = set(preset.split(",")) - {"paper"} | {"smoke"}
        assert set(config.preset.split(",")) == presets
        assert config.train.num_steps == 20
        assert config.train.num_epochs == 0
        assert config.train.eval_every <= 20
        assert config.train.max_eval_examples == 500


def test_make_config_names_an_unknown_word():
    with pytest.raises(
        ValueError, match=r"'nystrm'; presets are paper.*quick.*; attentions .*softmax"
    ):
        resolve("text", "nystrm")


def test_make_config_names_two_attentions():
    """Neither is taken in silence; one that is given twice is one."""
    message = "nystrom and softmax are both attentions: give one"
    with pytest.raises(ValueError, match=message):
        resolve("text", "nystrom,quick,softmax")
    assert resolve("text", "softmax,softmax") == resolve("text", "softmax")


def test_make_config_names_an_unknown_task():
    with pytest.raises(ValueError, match="unknown task 'mine': --load the module"):
        make_config(task="mine", settings={}, presets={})
