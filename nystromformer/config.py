"""The schema of a run's configuration: dataclasses, checked before compilation.

Their defaults are the paper's on the LRA. `task`, `objective` and `attention` are open
groups: a name and options, which go to `get_task`, the objective and `make_attention`.
An `AttentionConfig` speaks of all layers; `Config.attentions` lists the attention of
each, a `LayerAttention`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, get_type_hints

import numpy as np

from nystromformer.attention import find_attention
from nystromformer.by_layer import (
    LayerAttention,
    add_default_options,
    attentions_by_layer,
    parse_by_layer,
)
from nystromformer.encoder_config import EncoderSettings
from nystromformer.errors import ConfigError
from nystromformer.training_config import OptimizerConfig, TrainConfig
from nystromformer.validation import check_choice, check_type


@dataclasses.dataclass(frozen=True)
class OpenGroup:
    """A name and the options that belong to it."""

    name: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class TaskConfig(OpenGroup):
    """The task, and the folder of its data, which says nothing about a run."""

    data_dir: str | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class AttentionConfig(OpenGroup):
    """The attention of all layers, and settings of single layers that differ.

    by_layer: text for `parse_by_layer`, such as "0=softmax 3.num_landmarks=128".
    """

    by_layer: str | None = None

    def __str__(self) -> str:
        return f"{self.name} (layers: {self.by_layer})" if self.by_layer else self.name

    def layer_settings(self) -> dict[int, dict[str, Any]]:
        """Returns the settings of single layers, as `attentions_by_layer` takes them.

        A layer with a different attention starts from the options of that attention in
        configs.

        Raises:
          ValueError: for a text that `parse_by_layer` refuses, or an unknown attention.
        """
        by_layer = parse_by_layer(self.by_layer or "")
        return add_default_options(self.name, by_layer, _options_in_configs)


def _options_in_configs(name: str) -> dict[str, Any]:
    """The options with which a config of that attention starts."""
    return find_attention(name).config_defaults()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(EncoderSettings):
    """The encoder, and how its output becomes one vector."""

    dtype: str = "float32"
    # A name in classifiers.POOLINGS; or "bert_pooler" or "gelu_pooler", which read the
    # token [CLS] by a linear layer and tanh or GELU.
    pooling: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("dtype", self.dtype, ("float32", "bfloat16"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run. Its first three fields say how it was made, not what it does.

    preset: the presets of its config file.
    overrides: group.key -> value of what the command line changed in them.
    load: the modules that it imports.
    """

    preset: str = dataclasses.field(default="", compare=False)
    overrides: dict = dataclasses.field(default_factory=dict, compare=False)
    load: tuple | list = dataclasses.field(default=(), compare=False)
    task: TaskConfig
    objective: OpenGroup = dataclasses.field(default=OpenGroup("classification"))
    model: ModelConfig
    attention: AttentionConfig
    optimizer: OptimizerConfig
    train: TrainConfig

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Config":
        """Makes a config of plain values, as from ConfigDict.to_dict() or JSON.

        Args:
          mapping: group -> key -> value.

        Raises:
          ConfigError: one line about a key, or about values that cannot work.
        """
        return _build(cls, "config", mapping)

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of `from_mapping`."""
        groups = dataclasses.asdict(self)
        for name in ("task", "objective", "attention"):
            options = groups[name].pop("options")
            groups[name].update(options)
        return groups

    def __post_init__(self) -> None:
        warmup_steps = self.optimizer.warmup_steps
        num_steps = self.train.num_steps  # 0 until the epochs have been counted
        if num_steps and warmup_steps > num_steps:
            raise ValueError(
                f"optimizer.warmup_steps={warmup_steps} are more than "
                f"train.num_steps={num_steps}: give fewer, by "
                f"--config.optimizer.warmup_steps={num_steps // 10}"
            )
        self.attentions()
        self._check_parts_of_batches()

    def attentions(self) -> list[LayerAttention]:
        """Lists the name and the options of the attention of each layer."""
        return attentions_by_layer(
            num_layers=self.model.num_layers,
            name=self.attention.name,
            options=self.attention.options,
            by_layer=self.attention.layer_settings(),
        )

    def _check_parts_of_batches(self) -> None:
        """Raises ValueError if dividing a batch would change its results."""
        has_buckets = self.train.length_buckets > 1
        has_parts = has_buckets or self.train.grad_accum_steps > 1
        for name, options in self.attentions():
            attention = find_attention(name)
            values = attention.complete_options(options)
            for option, value in attention.padding_sensitive.items():
                if has_buckets and values[option] == value:
                    raise ValueError(
                        f"attention.{option}={value!r} depends on the padding: "
                        "it needs train.length_buckets=1"
                    )
            for option, value in attention.batch_sensitive.items():
                if has_parts and values[option] == value:
                    raise ValueError(
                        f"attention.{option}={value!r} depends on the whole batch: it "
                        "needs train.grad_accum_steps=1 and train.length_buckets=1"
                    )


def key_types(cls: type) -> dict[str, Any]:
    """The keys of a group, or of any dataclass of options, with their types."""
    types = get_type_hints(cls)
    return {field.name: types[field.name] for field in dataclasses.fields(cls)}


def default_values() -> dict[str, Any]:
    """Returns the defaults of the model and its training, by keys as "train.seed"."""
    groups = {"model": ModelConfig, "optimizer": OptimizerConfig, "train": TrainConfig}
    return {
        f"{group}.{key}": getattr(cls, key)
        for group, cls in groups.items()
        for key in key_types(cls)
        if hasattr(cls, key)
    }


def _to_plain(value: Any) -> Any:
    """A value as JSON has it, in which a config is saved."""
    return value.item() if isinstance(value, np.generic) else value


def _build(cls: Any, path: str, mapping: Mapping[str, Any]) -> Any:
    """An instance of a dataclass from its keys, with their types checked.

    Args:
      cls: Config or the class of one of its groups.
      path: its name in messages, such as "config.train".
      mapping: its keys. Those that an open group does not declare are its options.
    """
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path} must be a group of keys, got {mapping!r}")
    types = key_types(cls)
    is_open = "options" in types
    types.pop("options", None)

    fields = {}
    options = {}
    for key, value in mapping.items():
        if key in types:
            fields[key] = _to_plain(value)
        else:
            options[key] = _to_plain(value)
    if options and not is_open:
        raise ConfigError(
            f"unknown key {path}.{min(options)}; known: {', '.join(types)}"
        )
    if is_open:
        fields["options"] = options
    missing = _required_keys(cls) - fields.keys()
    if missing:
        raise ConfigError(f"{path} has no key {', '.join(sorted(missing))}: add it")
    for key, kind in types.items():
        if key in fields and dataclasses.is_dataclass(kind):
            fields[key] = _build(kind, f"{path}.{key}", fields[key])

    try:
        for key, kind in types.items():
            if key in fields:
                check_type(key, fields[key], kind)
        return cls(**fields)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _required_keys(cls: Any) -> set[str]:
    """The keys of a group, or the groups of a config, that have no default."""
    return {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is MISSING and field.default_factory is MISSING
    }
