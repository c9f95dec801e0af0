"""The paper preset is the authors' table; every preset of every task can run."""

import dataclasses

import pytest

from configs.defaults import attention, make_config
from lra_tasks import LRA
from lra_tasks.task import get_task, task_class
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.experiment import Experiment
from tests import small
from tests.presets import MODULES, flat

# The authors' settings of each task, in the order of LRA; those of all tasks are in
# presets_test.
PAPER = {
    "task.max_length": (2000, 4000, 4000, 1024, 1024),
    "train.batch_size": (32, 32, 32, 256, 256),
    "train.num_steps": (5_000, 20_000, 30_000, 35_000, 62_400),
    "optimizer.warmup_steps": (1_000, 8_000, 800, 175, 312),
    "train.eval_every": (50, 500, 300, 175, 312),
}


def test_paper_preset_is_the_authors_table():
    configs = [flat(task, "") for task in LRA]
    for key, values in PAPER.items():
        assert tuple(config[key] for config in configs) == values
    assert configs[0]["task.num_train"] == 96_000


@pytest.mark.parametrize("task", MODULES)
def test_every_preset_is_a_config(task):
    presets = MODULES[task].PRESETS
    options = {field.name for field in dataclasses.fields(task_class(task))}
    for preset in ["paper", *presets]:
        for name in ("nystrom", "reformer", "softmax"):
            config = small.make_config(f"{name},{preset}", task)
            assert config.preset == preset
            assert config.attention.name == name
            assert config.task.options.keys() == options
            get_task(task, **config.task.options)


@pytest.mark.parametrize("task", MODULES)
def test_every_preset_names_options_of_an_attention(task):
    options = set()
    for cls in ATTENTIONS.values():
        options |= {f"attention.{option}" for option in cls.options()}
    base = MODULES[task].get_config.keywords["settings"]
    for settings in [base, *MODULES[task].PRESETS.values()]:
        for key in settings:
            assert not key.startswith("attention.") or key in options


PUBLISHED_TASK_SETTINGS = {
    "listops": {"task.max_length": 2048},
    "text": {"task.max_length": 1024, "task.num_bytes": 1000},
    "retrieval": {"task.max_length": 4096, "task.num_bytes": 4000},
    "image": {},
    "pathfinder": {},
}
PUBLISHED_ATTENTION_SETTINGS = {
    "nystrom": attention(landmark_padding="count", pinv_init="per_batch"),
    "linformer": attention(sharing="layerwise_per_head"),
    "performer": attention(kernel="published", redraw_features=True),
    "reformer": attention(lsh_scope="chunk", redraw_hashes=True),
    "softmax": {},
}


@pytest.mark.parametrize("task", PUBLISHED_TASK_SETTINGS)
@pytest.mark.parametrize("name", PUBLISHED_ATTENTION_SETTINGS)
def test_as_published_is_the_paper_preset_with_just_these_changes(task, name):
    paper = flat(task, name)
    published = flat(task, f"{name},as_published")
    changes = {key: value for key, value in published.items() if paper[key] != value}
    assert changes == {
        "preset": "as_published",
        "model.pooling": "padded_mean",
        "optimizer.cycle_b1": True,
        **PUBLISHED_TASK_SETTINGS[task],
        **PUBLISHED_ATTENTION_SETTINGS[name],
    }


@pytest.mark.parametrize("task", PUBLISHED_TASK_SETTINGS)
@pytest.mark.parametrize("name", PUBLISHED_ATTENTION_SETTINGS)
def test_as_published_keeps_the_data_and_sizes_of_quick(task, name):
    quick = flat(task, f"{name},quick")
    published = flat(task, f"{name},quick,as_published")
    changes = {key: value for key, value in published.items() if quick[key] != value}
    assert changes == {
        "preset": "quick,as_published",
        "model.pooling": "padded_mean",
        "optimizer.cycle_b1": True,
        **PUBLISHED_ATTENTION_SETTINGS[name],
    }


SIZED_ATTENTIONS = [name for name, cls in ATTENTIONS.items() if cls.size_option]


@pytest.mark.parametrize("attention", SIZED_ATTENTIONS)
def test_quick_options_fit_into_short_sequences(attention):
    """A config whose sizes do not fit is refused, whatever its number of layers."""
    for task in MODULES:
        config = small.make_config(f"{attention},quick", task, model__num_layers=1)
        Experiment(config)


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
        assert flat("listops", arg) == flat("listops", "quick")
    twice = flat("listops", "pretrain,as_published,pretrain")
    assert twice == flat("listops", "as_published,pretrain")


@pytest.mark.parametrize("task", MODULES)
def test_smoke_is_a_run_of_a_few_steps_beside_any_preset(task):
    for preset in ["paper", *MODULES[task].PRESETS]:
        config = small.make_config(f"smoke,{preset}", task)
        presets = set(preset.split(",")) - {"paper"} | {"smoke"}
        assert set(config.preset.split(",")) == presets
        assert config.train.num_steps == 20
        assert config.train.num_epochs == 0
        assert config.train.eval_every <= 20


def test_make_config_names_an_unknown_word():
    with pytest.raises(ValueError, match=r"'nystrm'; known: .*softmax.*paper.*quick"):
        flat("text", "nystrm")


def test_make_config_names_an_unknown_task():
    with pytest.raises(ValueError, match="unknown task 'mine': --load the module"):
        make_config(task="mine", settings={}, presets={})
