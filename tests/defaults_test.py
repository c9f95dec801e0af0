"""The paper preset is the authors' table; every preset of every task can run."""

import dataclasses
import importlib
from functools import partial

import pytest
from flax.traverse_util import flatten_dict

from configs.defaults import attention, make_config, model, optimizer
from lra_tasks import LRA
from lra_tasks.task import TASKS, get_task
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.experiment import Experiment
from tests import small

MODULES = {name: importlib.import_module(f"configs.{name}") for name in TASKS}

PAPER = {  # The authors' settings
    "task.max_length": (2000, 4000, 4000, 1024, 1024),
    "train.batch_size": (32, 32, 32, 256, 256),
    "train.num_steps": (5_000, 20_000, 30_000, 35_000, 62_400),
    "optimizer.warmup_steps": (1_000, 8_000, 800, 175, 312),
    "train.eval_every": (50, 500, 300, 175, 312),
}
PAPER_OF_ALL = {
    **model(num_layers=2, num_heads=2, model_dim=64, mlp_dim=128, dropout_rate=0.1),
    **model(norm="pre", pooling="mean"),
    **attention(num_landmarks=64, num_pinv_iters=6, conv_kernel_size=35),
    **optimizer(learning_rate=1e-4, decay="linear", weight_decay=0),
    **optimizer(b1=0.9, b2=0.999, eps=1e-6),
}


def flat(task, arg):
    return flatten_dict(MODULES[task].get_config(arg).to_dict(), sep=".")


def test_paper_preset_is_the_authors_table():
    configs = [flat(task, "") for task in LRA]
    for key, values in PAPER.items():
        assert tuple(config[key] for config in configs) == values
    for config in configs:
        assert config.items() >= PAPER_OF_ALL.items()
    assert configs[0]["task.num_train"] == 96_000


@pytest.mark.parametrize("task", MODULES)
def test_every_preset_is_a_config(task):
    presets = MODULES[task].PRESETS
    options = {field.name for field in dataclasses.fields(TASKS[task])}
    for preset in ["paper", *presets]:
        for name in ("nystrom", "reformer", "softmax"):
            config = small.make_config(f"{name},{preset}", task)
            assert (config.preset, config.attention.name) == (preset, name)
            assert config.task.options.keys() == options
            get_task(task, **config.task.options)
    used = {key for preset in presets.values() for key in preset}
    known = {f"attention.{x}" for cls in ATTENTIONS.values() for x in cls.options()}
    assert {key for key in used if key.startswith("attention.")} <= known


OF_TASKS = {
    "listops": {"task.max_length": 2048},
    "text": {"task.max_length": 1024, "task.num_bytes": 1000},
    "retrieval": {"task.max_length": 4096, "task.num_bytes": 4000},
    "image": {"model.ignore_id": 0},
    "pathfinder": {"model.ignore_id": 0},
}
OF_ATTENTIONS = {
    "nystrom": {"landmark_padding": "count", "pinv_init": "per_batch"},
    "linformer": {"sharing": "layerwise_per_head"},
    "performer": {"kernel": "published", "redraw_features": True},
    "reformer": {"lsh_scope": "chunk"},
    "softmax": {},
}


@pytest.mark.parametrize("task", OF_TASKS)
@pytest.mark.parametrize("attention", OF_ATTENTIONS)
def test_as_published_is_the_paper_preset_with_just_these_changes(task, attention):
    paper, published = (flat(task, f"{attention},{x}") for x in ("", "as_published"))
    changes = {key: x for key, x in published.items() if paper[key] != x}
    everywhere = {"model.pooling": "padded_mean", "optimizer.cycle_b1": True}
    options = {f"attention.{x}": y for x, y in OF_ATTENTIONS[attention].items()}
    assert changes == {"preset": "as_published"} | everywhere | OF_TASKS[task] | options
    quick = (flat(task, f"{attention},quick{x}") for x in ("", ",as_published"))
    assert len({config["task.max_length"] for config in quick}) == 1


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_quick_options_fit_into_short_sequences(attention):
    for task in MODULES:
        Experiment(small.make_config(f"{attention},quick", task))  # or raises


def test_make_config_merges_presets_quick_first():
    presets = {
        "quick": {"train.seed": 1, "train.log_every": 1},
        "long": {"train.seed": 2, "train.log_every": 2},
        "quick,long": {"train.seed": 3},
        "wide": {"train.seed": 4, "attention.num_landmarks": 7, "attention.window": 5},
    }
    paper = {"train.batch_size": 8}
    make = partial(make_config, task="listops", settings=paper, presets=presets)

    def made(arg):
        config = make(arg)
        return config.preset, config.train.seed, config.train.log_every

    assert made("long") == ("long", 2, 2)
    assert made("long,quick") == made("quick,long") == ("quick,long", 3, 1)
    assert made("long,softmax,quick,wide") == ("quick,long,wide", 4, 1)
    assert made("") == made("paper,nystrom") == ("paper", 0, 50)
    assert make("wide").attention.num_landmarks == 7
    assert "window" not in make("wide").attention
    assert make("longformer,wide").attention.window == 5


def test_make_config_takes_a_preset_given_twice_once():
    for arg in ("quick,quick", "quick,nystrom,quick"):
        assert flat("listops", arg) == flat("listops", "quick")
    twice = flat("listops", "pretrain,as_published,pretrain")
    assert twice == flat("listops", "as_published,pretrain")


@pytest.mark.parametrize("task", MODULES)
def test_smoke_is_a_run_of_a_few_steps_beside_any_preset(task):
    for preset in ["paper", *MODULES[task].PRESETS]:
        words = {*preset.split(",")} - {"paper"}
        config = small.make_config(f"smoke,{preset}", task)  # or raises
        assert {*config.preset.split(",")} == {*words, "smoke"}
        assert (config.train.num_steps, config.train.num_epochs) == (20, 0)
        assert config.train.eval_every <= 20


def test_make_config_names_an_unknown_word_or_task():
    with pytest.raises(ValueError, match=r"'nystrm'; known: .*softmax.*paper.*quick"):
        flat("text", "nystrm")
    with pytest.raises(ValueError, match="unknown task 'mine': --load the module"):
        make_config(task="mine", settings={}, presets={})
