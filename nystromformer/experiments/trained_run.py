"""A run of scripts/train.py with the best weights that it has found."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from lra_tasks.split import Split
from lra_tasks.task import Task
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.study.capture import capture
from nystromformer.experiments.workdir import (
    RESULT_FILE,
    TOKENIZER_FILE,
    find_folder,
    read_config,
    read_result,
)
from nystromformer.landmarks import nystrom_rows, softmax_matrix
from nystromformer.training.checkpoint import (
    CheckpointError,
    load_weights,
    weights_sha256,
)
from nystromformer.training.data import Data, to_device
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Totals
from nystromformer.training.step import Weights, graphdef_of, make_eval_chunk

PREDICTED_AT_ONCE = 32  # examples
NYSTROM_OPTIONS = ("num_landmarks", "num_pinv_iters", "landmark_padding")
NYSTROM_OPTIONS += ("landmarks", "landmark_seed", "pinv")


class Prediction(NamedTuple):
    """classes: int [B], the most probable; probabilities: float32 [B, C]."""

    classes: np.ndarray
    probabilities: np.ndarray


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """The model of a run, with its config, task and result.

    experiment: what its config says.
    weights: the best on validation, on the host; step: at which they were found.
    result: the content of result.json, None where the run is not finished.
    """

    experiment: Experiment
    weights: Weights
    step: int
    result: dict[str, Any] | None

    @property
    def config(self) -> Config:
        """The config of the run."""
        return self.experiment.config

    @property
    def task(self) -> Task:
        """The task of the run; `run.task.load("test")` reads its examples."""
        return self.experiment.task

    @functools.cached_property
    def model(self) -> Any:
        """The model with the best weights: of inputs and a mask it gives logits.

        Where its attention counts padding (`landmark_padding="count"`, `kernel="published"`),
        inputs must be as long as the task's `max_length`; `predict` pads them.
        """
        graphdef = graphdef_of(self.experiment.make_model)
        return nnx.merge(graphdef, *jax.device_put(self.weights))

    def evaluate(self, split: str, data_dir: str | None = None) -> dict[str, float]:
        """The metrics of a split, and its number of examples.

        Raises:
          ConfigError: other data than the run was given.
        """
        examples = self.task.load(split, data_dir or self.config.task.data_dir)
        noted = (self.result or {}).get("data_sha256", {})  # earlier versions have none
        if noted and examples.content_hash != noted[split]:
            raise ConfigError(
                f"the {split} split is not the one that this run was trained with: "
                "correct source_dir, or name another --data_dir"
            )
        graphdef = graphdef_of(self.experiment.make_model)
        objective, train = self.experiment.objective, self.config.train
        metrics = evaluate(
            make_eval_chunk(graphdef, objective),
            Totals.zero(objective),
            jax.device_put(self.weights),
            to_device(examples),
            train.batch_size // train.grad_accum_steps,
            length_buckets=train.length_buckets,
        )
        assert metrics is not None
        return metrics

    def predict(
        self, inputs: Any, lengths: np.ndarray | Sequence[int] | None = None
    ) -> Prediction:
        """Classifies examples.

        Args:
          inputs: texts, or pairs of texts where an example has two; or token ids
            [B, L] ([B, 2, L] with two inputs), L ≤ the task's max_length.
          lengths: of token ids [B] ([B, 2]); None = they have no padding.

        Raises:
          DataError: a text that is none of the task's.
          ValueError: what is neither a list of texts nor token ids that fit, or a run
            that learnt no classes.
        """
        if self.config.objective.name != "classification":
            raise ValueError(f"{self.config.objective.name} predicts no classes")
        if not hasattr(inputs, "dtype"):
            inputs, lengths = self._encode(inputs)
        tokens, mask = self._padded(np.asarray(inputs), lengths)
        found = np.zeros((len(tokens), self.task.num_classes), np.float32)
        for start in range(0, len(tokens), PREDICTED_AT_ONCE):
            rows = np.arange(start, start + PREDICTED_AT_ONCE).clip(max=len(tokens) - 1)
            found[rows] = self._probabilities(tokens[rows], mask[rows])
        return Prediction(found.argmax(-1), found)

    def attention(
        self,
        inputs: Any,
        layer: int,
        head: int,
        rows: Sequence[int] | np.ndarray,
        lengths: np.ndarray | Sequence[int] | None = None,
    ) -> np.ndarray:
        """Rows of the attention matrix of one head.

        Args:
          inputs, lengths: as of `predict`, of tasks with one input.
          layer, head: which, from 0.
          rows: [R] queries; 0 is [CLS] where the model has one.

        Returns:
          [B, R, L], or L + 1 with [CLS] in front. With nystrom the rows of its
          approximation, in O(L · M): they need not sum to 1.

        Raises:
          ValueError: an attention that applies no such matrix, or one that depends on
            the rest of a batch.
        """
        name, at = self.config.attention.name, np.asarray(rows)
        if name not in ("nystrom", "softmax") or self.task.num_inputs == 2:
            raise ValueError(f"{self.task.name} with {name} has no attention matrix")
        asked = {"pinv": "iterative", **self.config.attention.options}
        if (asked.get("pinv_init"), asked["pinv"]) == ("per_batch", "iterative"):
            raise ValueError(
                'with pinv_init="per_batch" the matrix depends on the other examples'
            )
        if not hasattr(inputs, "dtype"):
            inputs, lengths = self._encode(inputs)
        tokens, mask = self._padded(np.asarray(inputs), lengths)
        labels = np.zeros(len(tokens), np.int32)
        data = Data.put(Split(tokens, mask.sum(-1), labels, None))
        own = self.model.encoder.blocks[layer].attention.attention
        found = capture(self.model, data, np.arange(len(tokens)))[layer]

        def one(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
            if name == "softmax":
                return softmax_matrix(query[at], key, mask)
            options = {option: getattr(own, option) for option in NYSTROM_OPTIONS}
            return nystrom_rows(query, key, jnp.asarray(at), mask, **options)

        query, key = (jnp.float32(x[:, :, head]) for x in (found.query, found.key))
        return np.asarray(jax.jit(jax.vmap(one))(query, key, found.mask))

    def _encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids [B, (2,) L] and lengths [B, (2)] of texts, or pairs of them."""
        task, single = self.task, isinstance(texts, str | Mapping)
        of_two = 2 in (task.num_inputs, task.num_texts)
        texts = texts if single else list(texts)
        if single or not all(_is_example(x, of_two) for x in texts):
            wanted = "pairs of texts" if of_two else "texts"
            raise ValueError(
                f"inputs must be a list of {wanted}, or an array of token ids; got "
                f"{texts!r:.60}"
            )
        pair = task.num_inputs == 2
        tokens, lengths = task.encode([*chain(*texts)] if pair else list(texts))
        shape = (-1, 2) if pair else (-1,)
        return tokens.reshape(*shape, task.max_length), lengths.reshape(shape)

    def _padded(
        self, tokens: np.ndarray, lengths: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and their mask [B, (2,) max_length], checked."""
        task, (*rows, length) = self.task, tokens.shape or (0,)
        lengths = np.full(rows, length) if lengths is None else np.asarray(lengths)
        pair = [2] if task.num_inputs == 2 else []
        fits = len(rows) == 1 + len(pair) and rows[1:] == pair
        if not fits or length > task.max_length or [*lengths.shape] != rows:
            sizes = ", ".join(map(str, ["B", *pair]))
            raise ValueError(
                f"token ids must be [{sizes}, L] with L ≤ {task.max_length} and "
                f"lengths [{sizes}], got {tokens.shape} and {lengths.shape}"
            )
        for name, x in (("token ids", tokens), ("lengths", lengths)):
            if not np.issubdtype(x.dtype, np.integer):
                raise ValueError(f"{name} must be whole numbers, got {x.dtype}")
        if lengths.size and not 0 <= lengths.min() <= lengths.max() <= length:
            raise ValueError(f"lengths must be from 0 to {length}")
        if tokens.size and not 0 <= tokens.min() <= tokens.max() < task.vocab_size:
            raise ValueError(f"token ids must be from 0 to {task.vocab_size - 1}")
        spare = [(0, 0)] * len(rows) + [(0, task.max_length - length)]
        mask = np.arange(task.max_length) < lengths[..., None]
        return np.pad(tokens.astype(np.int32), spare), mask

    @functools.cached_property
    def _probabilities(self) -> Any:
        """The compiled model: token ids and their mask to float32 [B, C]."""
        model = self.model  # made here: within the trace it would hold tracers for good
        return jax.jit(lambda tokens, mask: jax.nn.softmax(model(tokens, mask)))


def _is_example(item: Any, of_two: bool) -> bool:
    """Whether it is a text or, where an example has two, a pair of them."""
    if not of_two:
        return isinstance(item, str)
    pair = isinstance(item, list | tuple) and len(item) == 2
    return pair and all(isinstance(x, str) for x in item)


def load_run(workdir: str | os.PathLike[str]) -> TrainedRun:
    """The run of a workdir of scripts/train.py, a folder or gs://BUCKET/RUN.

    >>> run = load_run("runs/listops-quick")  # doctest: +SKIP
    >>> run.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"]).classes  # doctest: +SKIP
    array([9])

    Changes nothing there.

    Raises:
      ConfigError: it is no run, or has no validated weights yet.
      CheckpointError: its weights are damaged, or not those of its result.
    """
    folder = find_folder(workdir)
    config, words = read_config(folder), folder / TOKENIZER_FILE
    if words.exists() and config.task.options.get("tokenizer", "bpe") != "bpe":
        config.task.options["tokenizer"] = str(words)  # wherever it lies
    experiment = Experiment.from_config(config)
    if not (folder / "best").exists():
        raise ConfigError(f"{folder} has no validated weights yet")
    weights = load_weights(folder / "best", experiment.weight_shapes)
    result = read_result(folder)
    step = (result or {}).get("best_step", 0)
    if result and result["params_sha256"] != weights_sha256(weights):
        raise CheckpointError(
            f"the weights in {folder} are not those of its {RESULT_FILE}"
        )
    return TrainedRun(experiment, weights, step, result)
