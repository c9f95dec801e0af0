"""The schema of a run's configuration, validated before compilation.

A mapping becomes frozen models, or one line says what is wrong. `task`, `attention` and
`objective` are open groups: beside the fields below they hold options, which go to
`get_task`, `make_attention` and the objective, and are checked there.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from nystromformer.attention import ATTENTIONS, attention_options, check_attention

Count = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Dtype = Literal["float32", "bfloat16"]
DTYPES = get_args(Dtype)
Positive = Annotated[float, Field(gt=0)]


class ConfigError(ValueError):
    """A configuration that cannot run; the message says what to change."""


class Group(BaseModel):
    """A group of keys: strict types (an int is a float too), no unknown ones."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False
    )

    @property
    def options(self) -> dict[str, Any]:
        """The keys of an open group that are not its fields."""
        return dict(self.model_extra or {})


class TaskConfig(Group):
    """The task. `options` go to `lra_tasks.get_task`."""

    model_config = ConfigDict(extra="allow")
    name: str
    data_dir: str | None


class ObjectiveConfig(Group):
    """The objective. `options` go to the objective of that name."""

    model_config = ConfigDict(extra="allow")
    name: str = "classification"


class ModelConfig(Group):
    """The encoder and its head: see `EncoderConfig`."""

    num_layers: Annotated[int, Field(gt=0, le=64)]  # more take minutes to build
    num_heads: Count
    model_dim: Count
    mlp_dim: Count
    dropout_rate: Rate
    dtype: Dtype
    remat: Literal["none", "block"]
    pooling: Literal["mean", "padded_mean", "max", "cls_token", "bert_pooler"]
    norm: Literal["pre", "post"] = "pre"
    gelu: Literal["erf", "tanh"] = "erf"
    embedding_norm: bool = False
    num_token_types: Annotated[int, Field(ge=0)] = 0
    ignore_id: Annotated[int, Field(ge=0)] | None = None


class AttentionConfig(Group):
    """The attention. `options` go to `make_attention`."""

    model_config = ConfigDict(extra="allow")
    name: str


class OptimizerConfig(Group):
    """AdamW with linear warm-up to learning_rate, then linear decay over the run."""

    learning_rate: Positive
    warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    b1: Rate
    b2: Rate
    eps: Positive
    cycle_b1: bool = False  # 0.95, 0.85 at the peak, 0.95, instead of b1
    decay: Literal["linear", "none"] = "linear"


class TrainConfig(Group):
    """Length, intervals, batches and starting weights of training.

    seed: of the weights, the order of the examples and the dropout.
    batch_size: examples a step.
    num_steps, eval_every, log_every, checkpoint_every: in steps.
    num_epochs: instead of num_steps, which then follow from the data.
    grad_accum_steps: parts of a batch, of like lengths, one after another in less memory.
    length_buckets: lengths to which a part is padded; where examples are of one length
      more only take longer to compile.
    init_from: another run's workdir, whose best weights to begin with.
    """

    seed: Annotated[int, Field(ge=0, lt=2**32)]
    batch_size: Count
    num_steps: Count
    eval_every: Count
    log_every: Count
    checkpoint_every: Count
    grad_accum_steps: Count = (
        1  # what has a default may be missing, as in older workdirs
    )
    length_buckets: Annotated[int, Field(gt=0, le=16)] = 1  # a program for each
    init_from: Annotated[str, Field(min_length=1)] | None = None
    num_epochs: Positive | None = None


class Config(Group):
    """One run."""

    task: TaskConfig
    objective: ObjectiveConfig = ObjectiveConfig()
    model: ModelConfig
    attention: AttentionConfig
    optimizer: OptimizerConfig
    train: TrainConfig

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> "Config":
        """The checked configuration, with the defaults of what it lacks.

        Args:
          mapping: group -> field -> value, as `ConfigDict.to_dict()` or JSON gives it.

        Raises:
          ConfigError: for an unknown, missing or mistyped key, and for values that
            cannot work; one line that names the key.
        """
        try:
            config = cls.model_validate(mapping)
        except pydantic.ValidationError as error:
            raise ConfigError(_line(error.errors()[0])) from error
        except RecursionError as error:
            raise ConfigError("config is nested too deeply") from error
        _check_together(config)
        attention = config.attention
        lacking = {
            key: option.default
            for key, option in attention_options(attention.name).items()
            if key not in attention.options and option.default is not option.empty
        }
        filled = attention.model_copy(update=lacking)
        return config.model_copy(update={"attention": filled})

    def to_mapping(self) -> dict[str, Any]:
        """The inverse of `from_mapping`."""
        return self.model_dump()


def _line(error: Any) -> str:
    """An error of pydantic as one line."""
    path = ".".join(["config", *map(str, error["loc"])])
    if error["type"] == "extra_forbidden":
        group: Any = Config
        for name in error["loc"][:-1]:
            group = group.model_fields[name].annotation
        known = list(group.model_fields)
        near = difflib.get_close_matches(str(error["loc"][-1]), known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        return f"unknown key {path}; {hint}"
    if error["type"] == "missing":
        return f"{path} is missing"
    return f"{path}: {error['msg']}, got {error['input']!r}"


def _check_together(config: Config) -> None:
    """Raises ConfigError for values that contradict each other."""
    model, train = config.model, config.train
    if model.model_dim % model.num_heads:
        raise ConfigError(
            f"config.model.model_dim={model.model_dim} is not divisible by "
            f"num_heads={model.num_heads}"
        )
    if config.optimizer.warmup_steps > train.num_steps:
        raise ConfigError(
            f"config.optimizer.warmup_steps={config.optimizer.warmup_steps} must lie "
            f"between 0 and train.num_steps={train.num_steps}"
        )
    if train.batch_size % train.grad_accum_steps:
        raise ConfigError(
            f"config.train.batch_size={train.batch_size} is not divisible by "
            f"grad_accum_steps={train.grad_accum_steps}"
        )
    try:
        check_attention(config.attention.name, config.attention.options)
    except ValueError as error:
        raise ConfigError(f"config.attention: {error}") from error
    for option, value in ATTENTIONS[config.attention.name].padding_sensitive.items():
        is_set = config.attention.options.get(option) == value
        if is_set and train.length_buckets > 1:
            raise ConfigError(
                f'config.attention.{option}="{value}" counts the padding: take '
                "config.train.length_buckets=1"
            )
