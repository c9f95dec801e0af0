"""The paper preset is the authors' table; every preset of every task can run."""

import importlib
import itertools
from pathlib import Path

import pytest
from flax.traverse_util import flatten_dict

from lra_tasks.task import get_task
from nystromformer.attention import ATTENTIONS, attention_options
from nystromformer.config import Config
from nystromformer.experiments.run import Experiment

CONFIGS = sorted(
    path.stem for path in (Path(__file__).parents[1] / "configs").glob("*")
)
PARTS = ("defaults", "plans", "bert", "self_pretraining", "__pycache__")
TASKS = [name for name in CONFIGS if name not in PARTS]

# The authors' settings: length, batch size, steps, warm-up, validate every.
PAPER = {
    "listops": (2000, 32, 5_000, 1_000, 50),
    "text": (4000, 32, 20_000, 8_000, 500),
    "retrieval": (4000, 32, 30_000, 800, 300),
    "image": (1024, 256, 35_000, 175, 175),
    "pathfinder": (1024, 256, 62_400, 312, 312),
}


def make(task, arg=None):
    return importlib.import_module(f"configs.{task}").get_config(arg)


@pytest.mark.parametrize("task", PAPER)
def test_the_paper_preset(task):
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
    assert config.attention.num_pinv_iters == 6
    assert config.attention.conv_kernel_size == 35
    assert config.task.get("num_train", 96_000) == 96_000
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.weight_decay) == (1e-4, 0)
    assert (optimizer.b1, optimizer.b2, optimizer.eps) == (0.9, 0.999, 1e-6)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_config_reaches_every_option_of_every_attention(attention):
    assert ATTENTIONS[attention].defaults.keys() == attention_options(attention).keys()


@pytest.mark.parametrize("task", TASKS)
def test_every_preset_passes_the_door(task):
    presets = itertools.product(ATTENTIONS, ("paper", "quick", "as_published"))
    for attention, preset in presets:
        config = make(task, f"{attention},{preset}")
        checked = Config.from_mapping(config.to_dict())
        assert checked.attention.name == attention
        assert get_task(checked.task.name, **checked.task.options).name == task


BLACK = {"model.ignore_id": 0}
OF_TASKS = {
    "listops": {"task.max_length": 2048},
    "text": {"task.max_length": 1024, "task.num_bytes": 1000},
    "retrieval": {"task.max_length": 4096, "task.num_bytes": 4000},
    "image": BLACK,
    "pathfinder": BLACK,
}
OF_ATTENTIONS = {
    "nystrom": {"attention.landmark_padding": "padded", "attention.pinv_init": "batch"},
    "linformer": {"attention.sharing": "layerwise_per_head"},
    "performer": {"attention.kernel": "published"},
    "reformer": {"attention.lsh_scope": "chunk"},
}


@pytest.mark.parametrize("task", OF_TASKS)
@pytest.mark.parametrize("attention", ["softmax", *OF_ATTENTIONS])
def test_as_published_is_the_paper_preset_with_just_these_changes(task, attention):
    paper, published = (
        flatten_dict(make(task, f"{attention},{preset}").to_dict(), sep=".")
        for preset in ("paper", "as_published")
    )
    changes = {key: x for key, x in published.items() if paper[key] != x}
    everywhere = {"model.pooling": "padded_mean", "optimizer.cycle_b1": True}
    of_both = OF_TASKS[task] | OF_ATTENTIONS.get(attention, {})
    assert changes == everywhere | of_both
    quick = make(task, f"{attention},quick,as_published").task
    assert quick.max_length == make(task, "quick").task.max_length


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_quick_options_fit_into_short_sequences(attention):
    config = Config.from_mapping(make("listops", f"{attention},quick").to_dict())
    Experiment.from_config(config)  # raises for what is too large


def test_a_preset_with_another_objective_drops_the_options_of_the_first():
    config = make("glue", "nystrom,quick,mrpc,pretrain")
    Experiment.from_config(Config.from_mapping(config.to_dict()))  # or one is unknown
    assert config.objective.name == "mlm"


def test_what_is_set_in_one_config_is_not_in_the_next():
    first = make("listops")
    first.train.init_from = "/x"
    assert make("listops").train.init_from is None


@pytest.mark.parametrize("task", TASKS)
def test_a_word_changes_the_attentions_that_it_can_and_an_unknown_one_is_named(task):
    assert make(task, "nystrom,quick").attention != make(task, "nystrom").attention
    assert make(task, "identity,quick").attention == make(task, "identity").attention
    with pytest.raises(ValueError, match=r"'nystrm'; known: .*softmax.*paper.*quick"):
        make(task, "nystrm")
