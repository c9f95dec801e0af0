"""How a config is made: the defaults, a task's settings, and presets.

`--config=FILE:ARG` takes an attention and presets, separated by commas, as in
`configs/listops.py:nystrom,quick`. Presets are applied from left to right, but `quick`,
which is for two CPU cores, is always the first. A file may define "quick,NAME", which
then takes the place of NAME beside `quick`. `smoke`, which every task has, is always
the last: 20 steps, measured on 500 examples, that show whether all of it works. Beside
`quick` the data are small, too.

What a config has without a preset is called "paper"; for a task that no paper has it is
ours, and its file says so.

Settings are named as on the command line: "train.seed" is --config.train.seed, and
`train(seed=1)` is {"train.seed": 1}. To see all that a config comes to:

    python scripts/train.py --config=configs/listops.py:nystrom,quick --print_config
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from typing import Any, get_args

from ml_collections.config_dict import ConfigDict, placeholder

from lra_tasks import TASKS
from lra_tasks.task import task_class
from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.config import ModelConfig, OptimizerConfig, TrainConfig, key_types

Settings = Mapping[str, Any]


def objective(**values: Any) -> dict[str, Any]:
    """Settings of the group `objective`."""
    return _settings("objective", values)


def model(**values: Any) -> dict[str, Any]:
    """Settings of the group `model`."""
    return _settings("model", values)


def attention(**values: Any) -> dict[str, Any]:
    """Settings of the group `attention`; they apply where it has the option."""
    return _settings("attention", values)


def optimizer(**values: Any) -> dict[str, Any]:
    """Settings of the group `optimizer`."""
    return _settings("optimizer", values)


def train(**values: Any) -> dict[str, Any]:
    """Settings of the group `train`."""
    return _settings("train", values)


def _settings(group: str, values: Settings) -> dict[str, Any]:
    return {f"{group}.{key}": value for key, value in values.items()}


# Where the published runs differ from the paper; a task's file adds its own, such
# as the power of two to which they padded every sequence.
AS_PUBLISHED = {
    **model(pooling="padded_mean"),
    **optimizer(cycle_b1=True),
    **attention(landmark_padding="count", pinv_init="per_batch"),  # nystrom
    **attention(sharing="layerwise_per_head"),  # linformer
    **attention(kernel="published", redraw_features=True),  # performer
    **attention(lsh_scope="chunk", redraw_hashes=True),  # reformer
}

# In pictures black, the id 0, is padding: so it is for every model in the code of the
# Long Range Arena, in the paper's, and in that of Skyformer and of xformers.
BLACK_IS_PADDING = model(ignore_id=0)
ALL_PIXELS = model(ignore_id=None)

SMOKE = {
    **optimizer(warmup_steps=5),
    **train(num_steps=20, num_epochs=0.0),
    **train(eval_every=10, checkpoint_every=10, log_every=5, max_eval_examples=500),
}


def make_config(
    arg: str | None = None,
    *,
    task: str,
    settings: Settings,
    presets: Mapping[str, Settings],
) -> ConfigDict:
    """Makes the config of one task.

    Args:
      arg: an attention and presets; by default nystrom without a preset.
      task: a name in TASKS.
      settings: those of the paper, or ours for a task that it does not have, where
        they differ from the dataclasses' defaults.
      presets: name -> settings. Settings of an attention apply if it has the option;
        None is the default of the dataclass.

    Raises:
      ValueError: for an unknown task, two attentions, a word that is neither an
        attention nor a preset, or an option that no attention has.
    """
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: --load the module that registers it")
    attention_name, names = _parse_words(arg or "")
    attention_options = find_attention(attention_name).config_defaults()
    groups = {
        "preset": ",".join(names) or "paper",
        # Commands add the modules of --load, and a file that registers something.
        "load": (),
        "task": {
            "name": task,
            "data_dir": placeholder(str),
            **_defaults(task_class(task)),
        },
        # The best weights are those by the objective's own metric, unless `select`
        # names a different one.
        "objective": {"name": "classification", "select": placeholder(str)},
        "model": _defaults(ModelConfig),
        "attention": {
            "name": attention_name,
            "by_layer": placeholder(str),
            **attention_options,
        },
        "optimizer": _defaults(OptimizerConfig),
        "train": _defaults(TrainConfig),
    }
    merged = dict(settings)
    for name in names:
        merged |= _preset(name, {"smoke": SMOKE, **presets}, is_quick="quick" in names)
    _apply(merged, groups)
    return ConfigDict(groups)


def _parse_words(arg: str) -> tuple[str, list[str]]:
    """The attention and the presets in the order they apply.

    Raises ValueError for two attentions.
    """
    attention_name = None
    names: list[str] = []
    for word in arg.split(","):
        if word in ATTENTIONS:
            if attention_name not in (None, word):
                raise ValueError(
                    f"{attention_name} and {word} are both attentions: give one"
                )
            attention_name = word
        elif word not in ("", "paper"):
            if word in names:  # given twice, as by a plan and a flag of the sweep
                names.remove(word)
            names.append(word)
    # The sort keeps the order of all others.
    names.sort(key=lambda name: {"quick": 0, "smoke": 2}.get(name, 1))
    return attention_name or "nystrom", names


def _preset(name: str, presets: Mapping[str, Settings], is_quick: bool) -> Settings:
    """The settings of a preset, beside `quick` or not."""
    if name not in presets:
        names = ["paper", *(name for name in presets if "," not in name)]
        raise ValueError(
            f"unknown attention or preset {name!r}; presets are {', '.join(names)}; "
            f"attentions are {', '.join(ATTENTIONS)}"
        )
    if is_quick and f"quick,{name}" in presets:
        return presets[f"quick,{name}"]
    return presets[name]


def _apply(settings: Settings, groups: dict[str, Any]) -> None:
    """Writes settings into the groups of a config.

    An option of an attention that is not chosen is left out; None leaves the default.
    """
    attention_name = groups["attention"]["name"]
    own_options = find_attention(attention_name).options()
    for path, value in settings.items():
        group, key = path.split(".")
        if value is None:  # The default, a placeholder, knows the type of the key.
            continue
        is_option = group == "attention" and key not in ("name", "by_layer")
        if not is_option or key in own_options:
            groups[group][key] = value
        else:
            _check_other_option(key, attention_name)


def _check_other_option(option: str, attention_name: str) -> None:
    """Raises ValueError unless an option is that of an attention that is not chosen."""
    if not any(option in find_attention(name).options() for name in ATTENTIONS):
        known = ", ".join(find_attention(attention_name).options()) or "none"
        raise ValueError(
            f"no attention has the option attention.{option}; those of "
            f"{attention_name}: {known}"
        )


def make_get_config(
    task: str, settings: Settings, presets: Mapping[str, Settings]
) -> Callable[..., ConfigDict]:
    """Returns the `get_config` of a config file: `make_config` of its task."""
    return functools.partial(make_config, task=task, settings=settings, presets=presets)


def _defaults(cls: type) -> dict[str, Any]:
    """The keys of a group that have defaults; None is a placeholder of its type."""
    defaults = {}
    for key, kind in key_types(cls).items():
        default = getattr(cls, key, MISSING)
        if default is None:
            defaults[key] = placeholder(get_args(kind)[0])
        elif default is not MISSING:
            defaults[key] = default
    return defaults
