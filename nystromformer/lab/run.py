"""Marries a task and a model: what a config says, as objects."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from lra_tasks.base import SPLITS
from lra_tasks.task import Split, Task, get_task
from nystromformer.config import Config, ConfigError
from nystromformer.encoder import EncoderConfig
from nystromformer.lab.objectives import Learning, find_objective
from nystromformer.training.data import Batch
from nystromformer.training.files import (
    METRICS_FILE,
    Folder,
    system_errors,
    write_json,
)
from nystromformer.training.objective import Objective
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Weights, split_weights

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
RESULT_KEYS = {
    *("task", "attention", "seed", "best_step", "validation_accuracy"),
    *("test_accuracy", "test_examples", "floors", "params_sha256"),
}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One config's task, model and optimizer."""

    config: Config
    task: Task

    @classmethod
    def from_config(cls, config: Config) -> "Experiment":
        """Checks all that can be checked without data and without a compile.

        Raises:
          DataError: an unknown task or option.
          ConfigError: a model that cannot be built for the task.
        """
        experiment = cls(config, get_task(config.task.name, **config.task.options))
        try:
            experiment.num_params  # noqa: B018 - builds the model in the abstract
        except ValueError as error:
            raise ConfigError(f"config.model, config.attention: {error}") from error
        return experiment

    @functools.cached_property
    def learning(self) -> Learning:
        """What the config's objective stands for."""
        return find_objective(self.config.objective.name)

    @functools.cached_property
    def objective(self) -> Objective:
        """What is learnt."""
        try:
            return self.learning.make_objective(
                self.task, **self.config.objective.options
            )
        except TypeError as error:  # an option that it does not have
            raise ConfigError(f"config.objective: {error}") from error

    def make_model(self, rngs: nnx.Rngs) -> Any:
        """The model, with fresh parameters."""
        model = self.config.model.model_dump()
        pooling = model.pop("pooling")
        config = EncoderConfig(
            vocab_size=self.task.vocab_size,
            max_length=self.task.max_length,
            attention=self.config.attention.name,
            attention_options=self.config.attention.options,
            **{**model, "dtype": jnp.dtype(model["dtype"])},
        )
        return self.learning.make_model(config, self.task, pooling, rngs)

    @functools.cached_property
    def weight_shapes(self) -> Weights:
        """Of the model's weights."""
        return jax.eval_shape(lambda: split_weights(self.make_model(nnx.Rngs(0)))[1])

    def make_optimizer(self) -> optax.GradientTransformation:
        """The optimizer over this run's length."""
        return make_optimizer(
            num_steps=self.config.train.num_steps, **self.config.optimizer.model_dump()
        )

    @functools.cached_property
    def num_params(self) -> int:
        """How many numbers are trained; also takes a batch in the abstract."""
        pair = (2,) if self.task.num_inputs == 2 else ()
        inputs = jax.ShapeDtypeStruct((1, *pair, self.task.max_length), jnp.int32)
        one = jnp.zeros(1, jnp.int32)

        def shapes(inputs: jax.Array) -> Any:
            model = self.make_model(nnx.Rngs(0))
            batch = Batch(inputs, inputs > 0, one, jnp.ones(1), one)
            self.objective(model, batch, jax.random.key(0))
            return nnx.state(model, nnx.Param)

        return sum(x.size for x in jax.tree.leaves(jax.eval_shape(shapes, inputs)))

    def load(self) -> dict[str, Split]:
        """All splits, prepared first where they are not yet."""
        data_dir = self.config.task.data_dir
        splits = {name: self.task.load(name, data_dir) for name in SPLITS}
        if splits["train"].num_examples < self.config.train.batch_size:
            raise ConfigError(
                f"config.train.batch_size={self.config.train.batch_size} is over the "
                f"{splits['train'].num_examples} training examples"
            )
        return splits


def read_json(path: Folder) -> Any:
    """A JSON file, or one line that says which file is broken."""
    with system_errors(path):
        content = path.read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error})") from error


def open_workdir(workdir: Folder, config: Config) -> None:
    """Makes the folder with its config.json, or checks that the config is the same."""
    check_workdir(workdir, config)
    with system_errors(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        new = not (workdir / CONFIG_FILE).exists()
    if new:
        write_json(workdir / CONFIG_FILE, config.to_mapping())


def check_workdir(workdir: Folder, config: Config) -> None:
    """Raises ConfigError where a run of this config may not live; changes nothing.

    Where the data lie may differ: a workdir moves between machines by copying.
    """
    mapping = config.to_mapping()
    with system_errors(workdir):
        new = not (workdir / CONFIG_FILE).exists()
        orphans = new and (workdir / "checkpoints").exists()
    if new:
        if orphans:
            raise ConfigError(
                f"{workdir} holds checkpoints but no {CONFIG_FILE}: name another "
                "workdir, or delete it"
            )
        return
    theirs = read_config(workdir).to_mapping()
    for group, fields in mapping.items():
        keys = {*fields, *theirs[group]} - {"data_dir"}
        for key in sorted(keys, key=lambda key: (key != "name", key)):
            ours, other = fields.get(key), theirs[group].get(key)
            if ours != other:
                raise ConfigError(
                    f"{workdir} holds a run with another config: {group}.{key} is "
                    f"{other!r} there, {ours!r} here; name another workdir"
                )


def write_result(workdir: Folder, result: dict[str, Any]) -> None:
    """Writes what a finished run has found, sealed with its config and metrics."""
    files = {name: _file_sha256(workdir / name) for name in (CONFIG_FILE, METRICS_FILE)}
    sealed = {**result, "files_sha256": files}
    write_json(workdir / RESULT_FILE, {**sealed, "sha256": _sha256(sealed)})


def _sha256(result: dict[str, Any]) -> str:
    """sha256 (hex) of a result's JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def _file_sha256(path: Folder) -> str | None:
    """sha256 (hex) of a file, or None where there is none."""
    with system_errors(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def read_result(workdir: Folder) -> dict[str, Any] | None:
    """What a finished run has found, or None where it is not finished.

    Raises:
      ConfigError: a bit of it, of its config or of its metrics is not what was written.
    """
    path = workdir / RESULT_FILE
    with system_errors(path):
        if not path.exists():
            return None
    result = read_json(path)
    if not isinstance(result, dict) or not result.keys() >= RESULT_KEYS:
        raise ConfigError(f"{path} is no result of this program; delete it")
    noted = result.pop("sha256", None)  # results of earlier versions have none
    if noted and noted != _sha256(result):
        raise ConfigError(f"{path} is damaged: copy it again, or delete it")
    for name, sha256 in (result.get("files_sha256", {}) if noted else {}).items():
        file = workdir / name
        if _file_sha256(file) not in (None, sha256):
            raise ConfigError(
                f"{file} is not the one that {RESULT_FILE} was made with: copy it "
                "again, or delete the folder and run again"
            )
    return result


def read_config(workdir: Folder) -> Config:
    """The config of an existing workdir."""
    path = workdir / CONFIG_FILE
    with system_errors(path):
        found = path.is_file()
    if not found:
        raise ConfigError(f"{workdir} is no run: it has no {CONFIG_FILE}")
    try:
        return Config.from_mapping(read_json(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
