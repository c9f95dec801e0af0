"""The paper preset is the authors' table; every preset of every task can run."""

import dataclasses
import importlib
from pathlib import Path

import pytest
from flax.traverse_util import flatten_dict

from configs.defaults import make_config
from lra_tasks.task import TASKS, get_task
from nystromformer.attention import ATTENTIONS, attention_options
from nystromformer.config import Config
from nystromformer.experiments.run import Experiment

PARTS = ("defaults", "plans", "self_pretraining")
FILES = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))
MODULES = {
    path.stem: importlib.import_module(f"configs.{path.stem}")
    for path in FILES
    if path.stem not in PARTS
}

# The authors' settings: length, batch size, steps, warm-up, validate every.
PAPER = {
    "listops": (2000, 32, 5_000, 1_000, 50),
    "text": (4000, 32, 20_000, 8_000, 500),
    "retrieval": (4000, 32, 30_000, 800, 300),
    "image": (1024, 256, 35_000, 175, 175),
    "pathfinder": (1024, 256, 62_400, 312, 312),
}


def make(task, arg=None):
    return MODULES[task].get_config(arg)


def flat(task, arg):
    return flatten_dict(make(task, arg).to_dict(), sep=".")


@pytest.mark.parametrize("task", PAPER)
def test_paper_preset_is_the_authors_table(task):
    config = make(task)
    train = config.train
    assert PAPER[task] == (
        config.task.max_length,
        train.batch_size,
        train.num_steps,
        config.optimizer.warmup_steps,
        train.eval_every,
    )
    model = config.model
    assert (model.num_layers, model.model_dim, model.mlp_dim) == (2, 64, 128)
    assert (model.num_heads, model.dropout_rate, model.pooling) == (2, 0.1, "mean")
    assert config.attention.num_landmarks == 64
    assert config.attention.num_pinv_iters == 6
    assert config.attention.conv_kernel_size == 35
    assert config.task.get("num_train", 96_000) == 96_000
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (1e-4, 0)
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-6)
    assert optimizer.decay == "linear"


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_attention_defaults_hold_every_option(attention):
    assert ATTENTIONS[attention].defaults.keys() == attention_options(attention).keys()


@pytest.mark.parametrize("task", MODULES)
def test_configs_hold_every_option_of_their_task(task):
    config = Config.from_mapping(make(task).to_dict())
    options = {field.name for field in dataclasses.fields(TASKS[task])}
    assert config.task.options.keys() == options


@pytest.mark.parametrize("task", MODULES)
def test_every_preset_is_a_config(task):
    presets = MODULES[task].PRESETS
    for preset in ["paper", *presets]:
        for attention in ("nystrom", "reformer", "softmax"):
            config = Config.from_mapping(make(task, f"{attention},{preset}").to_dict())
            assert config.preset == preset
            assert config.attention.name == attention
            assert get_task(task, **config.task.options).name == task
    used = {key for preset in presets.values() for key in preset}
    known = {f"attention.{x}" for name in ATTENTIONS for x in attention_options(name)}
    assert {key for key in used if key.startswith("attention.")} <= known


BLACK = {"model.ignore_id": 0}
OF_TASKS = {
    "listops": {"task.max_length": 2048},
    "text": {"task.max_length": 1024, "task.num_bytes": 1000},
    "retrieval": {"task.max_length": 4096, "task.num_bytes": 4000},
    "image": BLACK,
    "pathfinder": BLACK,
}
OF_ATTENTIONS = {
    "nystrom": {
        "attention.landmark_padding": "count",
        "attention.pinv_init": "per_batch",
    },
    "linformer": {"attention.sharing": "layerwise_per_head"},
    "performer": {"attention.kernel": "published"},
    "reformer": {"attention.lsh_scope": "chunk"},
}


@pytest.mark.parametrize("task", OF_TASKS)
@pytest.mark.parametrize("attention", ["softmax", *OF_ATTENTIONS])
def test_as_published_is_the_paper_preset_with_just_these_changes(task, attention):
    paper, published = (flat(task, f"{attention},{x}") for x in ("", "as_published"))
    changes = {key: x for key, x in published.items() if paper[key] != x}
    everywhere = {"model.pooling": "padded_mean", "optimizer.cycle_b1": True}
    of_both = OF_TASKS[task] | OF_ATTENTIONS.get(attention, {})
    assert changes == {"preset": "as_published"} | everywhere | of_both
    quick = make(task, f"{attention},quick,as_published").task
    assert quick.max_length == make(task, "quick").task.max_length


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_quick_options_fit_into_short_sequences(attention):
    config = Config.from_mapping(make("listops", f"{attention},quick").to_dict())
    Experiment.from_config(config)  # raises for what is too large


@pytest.mark.parametrize("task", MODULES)
def test_quick_keeps_the_convolution_of_the_paper_preset(task):
    paper, quick = make(task).attention, make(task, "quick").attention
    assert quick.conv_kernel_size == paper.conv_kernel_size > 0


def test_make_config_merges_presets_quick_first():
    presets = {
        "quick": {"train.seed": 1, "train.log_every": 1},
        "long": {"train.seed": 2, "train.log_every": 2},
        "quick,long": {"train.seed": 3},
        "wide": {"train.seed": 4, "attention.num_landmarks": 7, "attention.window": 5},
    }
    paper = {"train.batch_size": 8}

    def made(arg):
        config = make_config(arg, "listops", paper, presets)
        return config.preset, config.train.seed, config.train.log_every

    assert made("long") == ("long", 2, 2)
    assert made("long,quick") == made("quick,long") == ("quick,long", 3, 1)
    assert made("long,softmax,quick,wide") == ("quick,long,wide", 4, 1)
    assert made("") == made("paper,nystrom") == ("paper", 0, 50)
    wide = make_config("wide", "listops", paper, presets).attention
    assert wide.num_landmarks == 7
    assert "window" not in wide
    assert make_config("longformer,wide", "listops", {}, presets).attention.window == 5


def test_make_config_shares_nothing_between_configs():
    first = make("listops")
    first.train.init_from = "/x"
    assert make("listops").train.init_from is None


@pytest.mark.parametrize("task", MODULES)
def test_get_config_names_an_unknown_word(task):
    with pytest.raises(ValueError, match=r"'nystrm'; known: .*softmax.*paper.*quick"):
        make(task, "nystrm")


def test_make_config_asks_for_the_module_of_an_unknown_task():
    with pytest.raises(ValueError, match="unknown task 'mine': --load the module"):
        make_config("", "mine", {}, {})


def test_fine_tuning_has_a_constant_rate_and_warmup_is_an_option():
    for config in (make("glue"), make("glue", "quick,mrpc"), make("text", "subwords")):
        assert (config.optimizer.warmup_steps, config.optimizer.decay) == (0, "none")
        assert (config.train.num_epochs, config.train.num_steps) == (4, 0)
    warmup = make("glue", "mrpc,warmup")
    assert (warmup.optimizer.warmup_steps, warmup.optimizer.decay) == (100, "linear")
    assert warmup.task.subset == "mrpc"
