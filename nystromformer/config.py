"""The door: a mapping becomes frozen dataclasses, or one line says what is wrong.

Everything that can be checked before a compile is checked here, so that a typing
mistake costs seconds. `task` and `attention` are open groups: beside the fields below
they hold the options of the task and of the attention, which those check themselves.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any

from nystromformer.attention import check_attention

DTYPES = ("float32", "bfloat16")
MAX_BUCKETS = 16  # a program is compiled for each
MAX_LAYERS = 64  # the time to build more grows faster than their number


class ConfigError(ValueError):
    """A configuration that cannot run; the message says what to change."""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """Which data. `options` go to `lra_tasks.get_task`."""

    name: str
    data_dir: str | None
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The encoder and its head: the arguments of `SequenceClassifier`."""

    num_layers: int
    num_heads: int
    model_dim: int
    mlp_dim: int
    dropout_rate: float
    dtype: str
    remat: str
    pooling: str


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Which attention. `options` go to `make_attention`."""

    name: str
    options: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up to learning_rate and linear decay over the run."""

    learning_rate: float
    warmup_steps: int
    weight_decay: float
    b1: float
    b2: float
    eps: float


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How long, how often, and in which parts.

    seed: of the weights, the order of the examples and the dropout.
    batch_size: examples a step.
    num_steps, eval_every, log_every, checkpoint_every: in steps.
    micro_batches: parts of a batch, of like lengths, one after another in less memory.
    length_buckets: lengths to which a part is padded; where examples are of one length
      more only take longer to compile.
    """

    seed: int
    batch_size: int
    num_steps: int
    eval_every: int
    log_every: int
    checkpoint_every: int
    micro_batches: int = 1  # what has a default may be missing, as in older workdirs
    length_buckets: int = 1


@dataclasses.dataclass(frozen=True)
class Config:
    """One run."""

    task: TaskConfig
    model: ModelConfig
    attention: AttentionConfig
    optimizer: OptimizerConfig
    train: TrainConfig

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Config":
        """The checked configuration.

        Args:
          mapping: group -> field -> value, as `ConfigDict.to_dict()` or JSON gives it.

        Raises:
          ConfigError: for an unknown, missing or mistyped key, and for values that
            cannot work; one line that names the key.
        """
        config = _group(cls, mapping, "config")
        _check_values(config)
        return config

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of `from_mapping`."""
        groups = dataclasses.asdict(self)
        for group in groups.values():
            group.update(group.pop("options", {}))
        return groups


def _group(cls: type, mapping: Any, path: str) -> Any:
    """`mapping` as the dataclass `cls`, strictly."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path} must be a group of keys, got {mapping!r}")
    hints = typing.get_type_hints(cls)
    known = [name for name in hints if name != "options"]
    extra = {key: value for key, value in mapping.items() if key not in known}
    if extra and "options" not in hints:
        unknown = next(iter(extra))
        raise ConfigError(f"unknown key {path}.{unknown}; known: {', '.join(known)}")
    defaults = {x.name: x.default for x in dataclasses.fields(cls)}
    required = [name for name in known if defaults[name] is dataclasses.MISSING]
    missing = [name for name in required if name not in mapping]
    if missing:
        raise ConfigError(f"{path}.{missing[0]} is missing")
    fields = {
        name: _value(hints[name], mapping[name], f"{path}.{name}")
        for name in known
        if name in mapping
    }
    if "options" in hints:
        fields["options"] = extra
    return cls(**fields)


def _value(wanted: Any, value: Any, path: str) -> Any:
    """`value` where it has the type that the field wants; an int is a float too."""
    if dataclasses.is_dataclass(wanted):
        return _group(typing.cast(type, wanted), value, path)
    accepted = typing.get_args(wanted) or (wanted,)
    is_bool = isinstance(value, bool)
    if float in accepted and isinstance(value, int) and not is_bool:
        value = float(value) if abs(value) < 2**53 else math.inf
    if not isinstance(value, accepted) or (is_bool and bool not in accepted):
        names = " or ".join(t.__name__ for t in accepted)
        raise ConfigError(f"{path} must be {names}, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path} must be finite, got {value}")
    return value


def _check_values(config: Config) -> None:
    """Raises ConfigError for values of the right type that cannot work."""
    model, optimizer, train = config.model, config.optimizer, config.train
    positive = {
        "model.num_layers": model.num_layers,
        "model.num_heads": model.num_heads,
        "model.model_dim": model.model_dim,
        "model.mlp_dim": model.mlp_dim,
        "optimizer.learning_rate": optimizer.learning_rate,
        "optimizer.eps": optimizer.eps,
        "train.batch_size": train.batch_size,
        "train.num_steps": train.num_steps,
        "train.eval_every": train.eval_every,
        "train.log_every": train.log_every,
        "train.checkpoint_every": train.checkpoint_every,
        "train.micro_batches": train.micro_batches,
        "train.length_buckets": train.length_buckets,
    }
    for name, value in positive.items():
        if value <= 0:
            raise ConfigError(f"config.{name} must be positive, got {value}")
    fractions = {
        "model.dropout_rate": model.dropout_rate,
        "optimizer.b1": optimizer.b1,
        "optimizer.b2": optimizer.b2,
    }
    for name, value in fractions.items():
        if not 0 <= value < 1:
            raise ConfigError(f"config.{name} must be in [0, 1), got {value}")
    _check_model(model)
    _check_optimizer(optimizer, train.num_steps)
    _check_train(train)
    try:
        check_attention(config.attention.name, config.attention.options)
    except ValueError as error:
        raise ConfigError(f"config.attention: {error}") from error
    padded = config.attention.options.get("segments") == "padded"
    if padded and train.length_buckets > 1:
        raise ConfigError(
            'config.attention.segments="padded" counts the padding: take '
            "config.train.length_buckets=1"
        )


def _check_model(model: ModelConfig) -> None:
    if model.num_layers > MAX_LAYERS:
        raise ConfigError(
            f"config.model.num_layers must be at most {MAX_LAYERS}, got "
            f"{model.num_layers}"
        )
    if model.model_dim % model.num_heads:
        raise ConfigError(
            f"config.model.model_dim={model.model_dim} is not num_heads="
            f"{model.num_heads} × a whole head dim"
        )
    if model.dtype not in DTYPES:
        raise ConfigError(
            f"config.model.dtype must be one of {DTYPES}, got {model.dtype!r}"
        )


def _check_optimizer(optimizer: OptimizerConfig, num_steps: int) -> None:
    if optimizer.weight_decay < 0:
        raise ConfigError(
            "config.optimizer.weight_decay must not be negative, got "
            f"{optimizer.weight_decay}"
        )
    if not 0 <= optimizer.warmup_steps <= num_steps:
        raise ConfigError(
            f"config.optimizer.warmup_steps={optimizer.warmup_steps} must lie between "
            f"0 and train.num_steps={num_steps}"
        )


def _check_train(train: TrainConfig) -> None:
    if train.batch_size % train.micro_batches:
        raise ConfigError(
            f"config.train.batch_size={train.batch_size} is not micro_batches="
            f"{train.micro_batches} × a whole number"
        )
    if train.length_buckets > MAX_BUCKETS:
        raise ConfigError(
            f"config.train.length_buckets must be at most {MAX_BUCKETS}, got "
            f"{train.length_buckets}"
        )
    if not 0 <= train.seed < 2**32:
        raise ConfigError(f"config.train.seed must be in [0, 2³²), got {train.seed}")
