"""How a config is made: the defaults, a task's paper settings, and presets.

`--config=FILE:ARG` takes an attention and presets, separated by commas, as in
`configs/listops.py:nystrom,quick`. Of two presets the later wins, but `quick`, for two
CPU cores, comes first; beside it NAME means the file's "quick,NAME", if it has one.
`smoke`, for every task, comes last: 20 steps that show whether all of it works.
Settings are named as on the command line: "train.seed" is --config.train.seed, and
`train(seed=1)` is {"train.seed": 1}.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from functools import partial
from typing import Any, get_args

from ml_collections.config_dict import ConfigDict, placeholder

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ModelConfig, OptimizerConfig, TrainConfig, key_types

Settings = Mapping[str, Any]


def _settings(group: str, **values: Any) -> dict[str, Any]:
    return {f"{group}.{key}": value for key, value in values.items()}


objective, model = partial(_settings, "objective"), partial(_settings, "model")
attention, optimizer = partial(_settings, "attention"), partial(_settings, "optimizer")
train = partial(_settings, "train")

# Where the published runs differ from the paper; a task's file adds its own, such
# as the power of two to which they padded every sequence.
AS_PUBLISHED = {
    **model(pooling="padded_mean"),
    **optimizer(cycle_b1=True),
    **attention(landmark_padding="count", pinv_init="per_batch"),  # of nystrom
    **attention(sharing="layerwise_per_head"),  # of linformer
    **attention(kernel="published", lsh_scope="chunk"),  # of performer, reformer
}

SMOKE = {
    **optimizer(warmup_steps=5),
    **train(num_steps=20, num_epochs=0.0),
    **train(eval_every=10, checkpoint_every=10, log_every=5),
}


def make_config(
    arg: str | None = None,
    *,
    task: str,
    settings: Settings,
    presets: Mapping[str, Settings],
    load: Sequence[str] = (),
) -> ConfigDict:
    """The config of one task.

    Args:
      arg: an attention and presets; nothing: nystrom as in the paper.
      task: a name in TASKS.
      settings: of the paper, where they differ from the dataclasses' defaults.
      presets: name -> settings. Settings of an attention apply if it has the option.
      load: modules that register what the config names, beside those of --load.
    """
    words = [word for word in (arg or "").split(",") if word not in ("", "paper")]
    # A preset that is given twice, as by a plan and a flag of the sweep, counts once.
    names = [
        word
        for place, word in enumerate(words)
        if word not in ATTENTIONS and word not in words[place + 1 :]
    ]
    names.sort(key=lambda name: (name != "quick", name == "smoke"))
    presets = {"smoke": SMOKE, **presets}
    attention = ["nystrom", *(word for word in words if word in ATTENTIONS)][-1]
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: --load the module that registers it")
    settings = dict(settings)
    for name in names:
        if name not in presets:
            known = [x for x in (*ATTENTIONS, "paper", *presets) if "," not in x]
            said = f"unknown attention or preset {name!r}"
            raise ValueError(f"{said}; known: {', '.join(known)}")
        beside = f"quick,{name}" if "quick" in names else name
        settings |= presets.get(beside, presets[name])
    groups = {
        "preset": ",".join(names) or "paper",
        "load": tuple(load),
        "task": {"name": task, "data_dir": placeholder(str), **_defaults(TASKS[task])},
        # `select` is a metric, if the objective asks for one.
        "objective": {"name": "classification", "select": placeholder(str)},
        "model": _defaults(ModelConfig),
        "attention": {"name": attention, **ATTENTIONS[attention].config_defaults()},
        "optimizer": _defaults(OptimizerConfig),
        "train": _defaults(TrainConfig),
    }
    for path, value in settings.items():
        group, key = path.split(".")
        if group != "attention" or key in groups[group]:
            groups[group][key] = value
    return ConfigDict(groups)


def config_of(
    task: str, settings: Settings, presets: Mapping[str, Settings]
) -> Callable[..., ConfigDict]:
    """`get_config` of a config file: `make_config` of its task."""
    return partial(make_config, task=task, settings=settings, presets=presets)


def _defaults(cls: type) -> dict[str, Any]:
    """The keys of a group that have defaults; None is a placeholder of its type."""
    return {
        key: placeholder(get_args(kind)[0]) if default is None else default
        for key, kind in key_types(cls).items()
        if (default := getattr(cls, key, MISSING)) is not MISSING
    }
