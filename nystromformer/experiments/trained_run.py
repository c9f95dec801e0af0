"""A run of scripts/train.py with the best weights that it has found."""

import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx

from lra_tasks.subwords import TOKENIZER_FILE
from nystromformer.errors import CheckpointError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.model_inputs import prepare_inputs
from nystromformer.experiments.recorded_layers import AttentionInputs, record_qkv
from nystromformer.experiments.workdir import (
    compared_settings,
    read_config,
    read_weights_sha256,
)
from nystromformer.factors import nystrom_rows, softmax_matrix
from nystromformer.run_files import (
    BEST_FOLDER,
    CONFIG_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    read_result,
)
from nystromformer.token_models import EncoderModel, MaskedLanguageModel
from nystromformer.training.checkpoint import (
    has_weights,
    load_weights,
    read_weights_file,
    weights_sha256,
)
from nystromformer.training.data import HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.step import Weights
from nystromformer.validation import check_range

PREDICTED_AT_ONCE = 32  # examples
# The options of Nyström attention that its matrix depends on.
MATRIX_OPTIONS = (
    "num_landmarks",
    "num_pinv_iters",
    "landmark_padding",
    "landmarks",
    "landmark_seed",
    "pinv",
)


class Prediction(NamedTuple):
    """The classes of B examples, out of C.

    For a task that labels tokens the arrays are [B, max_length] and
    [B, max_length, C]: every token gets a class, also those without a label and the
    padding.

    classes: int [B], the most probable ones.
    probabilities: float32 [B, C].
    labels: str [B], the names of `classes`.
    """

    classes: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray


class TrainedRun:
    """The model of a run, with its config, task and result.

    experiment: the objects that its config describes, `config` and `task` among them.
    weights: the best on validation so far, on the host.
    result: the content of result.json; None if the run is not finished.
    folder: where the run lies; None if it is only in memory.
    """

    def __init__(
        self,
        experiment: Experiment,
        weights: Weights,
        result: dict[str, Any] | None,
        folder: epath.Path | None = None,
    ):
        self.experiment = experiment
        self.config = experiment.config
        self.task = experiment.task
        self.weights = weights
        self.result = result
        self.folder = folder

    @functools.cached_property
    def model(self) -> Any:
        """The model with the best weights: inputs and a mask to logits.

        An attention that is sensitive to padding (`landmark_padding="count"`,
        `kernel="published"`) needs inputs of the task's `max_length`; `predict` pads.
        """
        return nnx.merge(self.experiment.graphdef, *jax.device_put(self.weights))

    def evaluate(self, split: str, data_dir: str | None = None) -> dict[str, float]:
        """Returns the metrics of a split, and its number of examples.

        Args:
          split: a name in the task's `splits`.
          data_dir: the folder of the data; None is that of the run.
        """
        examples = self.task.load(split, data_dir or self.config.task.data_dir)
        if self.result is not None:
            trained_sha256 = self.result["data_sha256"].get(split)
            if trained_sha256 not in (None, examples.content_hash):
                print(f"note: this {split} split is not the run's", file=sys.stderr)

        train = self.config.train
        metrics = evaluate(
            self.experiment.make_programs(),
            jax.device_put(self.weights),
            HostSplit.from_split(examples),
            train.batch_size // train.grad_accum_steps,
            train.length_buckets,
        )
        assert metrics is not None  # Only one that is asked to stop has none.
        return metrics

    def check_has_classes(self) -> None:
        """Raises ValueError for a run that predicts no classes."""
        if isinstance(self.model, MaskedLanguageModel | EncoderModel):
            raise ValueError(f"{self.config.objective.name} predicts no classes")

    def predict(
        self, inputs: Any, lengths: np.ndarray | Sequence[int] | None = None
    ) -> Prediction:
        """Classifies examples.

        Texts that have more tokens than the task takes are cut, as in training, and a
        warning counts them. An empty text of bytes has no tokens: its answer is that
        of the model to padding alone, whatever it says of other texts.

        Args:
          inputs: texts, or pairs of texts where an example has two; or token ids
            [B, L] ([B, 2, L] with two inputs), L ≤ the task's max_length.
          lengths: the numbers of tokens of the rows of ids, [B] ([B, 2]). None: no row
            has padding; then a row that ends in 0, the padding, is an error.

        Raises:
          DataError: for a text that is not one of the task's.
          ValueError: for inputs of a different form, and for a run without classes.
        """
        self.check_has_classes()
        tokens, mask = prepare_inputs(
            self.task, inputs, lengths, num_sequences=self.task.num_inputs
        )
        num_examples = len(tokens)
        token_axis = (self.task.max_length,) if self.task.num_labels else ()
        shape = (num_examples, *token_axis, self.task.num_classes)
        probabilities = np.zeros(shape, np.float32)
        for start in range(0, num_examples, PREDICTED_AT_ONCE):
            # The last batch repeats an example, so that all have the same shape.
            rows = np.arange(start, start + PREDICTED_AT_ONCE).clip(
                max=num_examples - 1
            )
            probabilities[rows] = _probabilities(self.model, tokens[rows], mask[rows])

        classes = probabilities.argmax(-1)
        names = np.array(self.task.class_names)
        return Prediction(classes, probabilities, names[classes])

    def layers(self, inputs: Any, lengths: Any = None) -> list[AttentionInputs]:
        """Returns the queries, keys and values of each layer, and its mask.

        Args:
          inputs, lengths: as in `predict`; where an example has two inputs, one of
            them.
        """
        graphdef, weights = nnx.split(self.model.encoder)
        tokens, mask = prepare_inputs(self.task, inputs, lengths)
        return jax.device_get(record_qkv(graphdef, weights, tokens, mask))

    def attention(
        self, inputs: Any, layer: int, head: int, rows: Any, lengths: Any = None
    ) -> np.ndarray:
        """Returns rows of the attention matrix of one head.

        The columns are [CLS], if the model has one, and what `task.encode` gives; those
        of padding are 0. The rows of Nyström's approximation take O(L · M) operations,
        and need not sum to 1.

        Args:
          inputs, lengths: as in `layers`.
          layer: its number, from 0; negative ones count from the last, −1.
          head: as layer.
          rows: the numbers of R queries; 0 is [CLS] where the model has one.

        Returns:
          [B, R, L], or [B, R, L + 1] with [CLS].

        Raises:
          ValueError: for a layer, head or row that does not exist, and for an attention
            without a matrix.
        """
        model = self.config.model
        check_range("layer", layer, -model.num_layers, model.num_layers - 1)
        check_range("head", head, -model.num_heads, model.num_heads - 1)
        name, options = self.config.attentions()[layer]
        if name not in ("nystrom", "softmax") or (
            options.get("pinv_init") == "per_batch"
        ):
            raise ValueError("rows need softmax, or nystrom with pinv_init=per_matrix")

        qkv = self.layers(inputs, lengths)[layer]
        length = qkv.query.shape[1]
        row_numbers = np.atleast_1d(rows)
        if not np.isin(row_numbers, np.arange(length)).all():
            raise ValueError(f"rows must be from 0 to {length - 1}, got {rows}")
        matrix_options = {key: options[key] for key in MATRIX_OPTIONS if key in options}

        def rows_of_example(
            query: jax.Array, key: jax.Array, mask: jax.Array
        ) -> jax.Array:
            if name == "softmax":
                return softmax_matrix(query[row_numbers], key, mask)
            return nystrom_rows(
                query, key, jnp.asarray(row_numbers), mask, **matrix_options
            )

        query = jnp.float32(qkv.query[:, :, head])
        key = jnp.float32(qkv.key[:, :, head])
        return np.asarray(jax.jit(jax.vmap(rows_of_example))(query, key, qkv.mask))


@nnx.jit
def _probabilities(model: Any, tokens: Any, mask: Any) -> jax.Array:
    return jax.nn.softmax(model(tokens, mask))


def load_run(
    workdir: epath.PathLike, source_dir: epath.PathLike | None = None
) -> TrainedRun:
    """Loads a run, finished or not, with its best weights.

    Args:
      workdir: the workdir of scripts/train.py, a folder or gs://BUCKET/RUN; or a
        folder of scripts/export.py.
      source_dir: where the sources of its task are now; None is where they were.

    Raises:
      ConfigError: if it is not a run, or its config or result is damaged.
      CheckpointError: if its weights are damaged or those of a different run, or it
        has none yet.
    """
    folder = epath.Path(workdir).expanduser()
    tokenizer_file = str(folder / TOKENIZER_FILE)
    config = read_config(folder)
    settings = compared_settings(config.to_mapping())
    task_options = config.task.options
    if source_dir:
        task_options["source_dir"] = str(source_dir)
    if task_options.get("tokenizer") not in (None, "bpe", "byte"):
        # The path of a file, of which the run has a copy: the original may have moved.
        task_options["tokenizer"] = tokenizer_file
    experiment = Experiment(config)
    if experiment.task.tokenizer == "bpe":
        # The task would learn it from the data, which need not be here.
        experiment.task.use_tokenizer(tokenizer_file)

    result = read_result(folder)
    best_weights = folder / BEST_FOLDER
    weights_file = folder / WEIGHTS_FILE
    has_no_weights = not (has_weights(best_weights) or weights_file.exists())
    if result is None and has_no_weights:
        raise CheckpointError(f"{folder} has not validated yet: resume its training")
    best_settings = None  # imported and exported weights have none
    try:
        if weights_file.exists():
            weights = read_weights_file(weights_file, experiment.weight_shapes)
        else:
            weights, best_settings = load_weights(
                best_weights, experiment.weight_shapes
            )
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; copy this folder again, or train the run anew"
        ) from None  # it would be a chain of the tracebacks of orbax
    if best_settings is not None:
        _check_same_run(folder, settings, compared_settings(best_settings))
    sha256 = read_weights_sha256(folder)
    if sha256 not in (None, weights_sha256(weights)):
        raise CheckpointError(
            f"the weights in {folder} are not those that its {CONFIG_FILE} or "
            f"{RESULT_FILE} belongs to: copy all files from the same run"
        )
    return TrainedRun(experiment, weights, result, folder)


def _check_same_run(
    folder: epath.Path, settings: dict[str, Any], best_settings: dict[str, Any]
) -> None:
    """Raises CheckpointError if the best weights are those of a different run.

    A setting that only one of the two has is newer than the other.
    """
    for key, value in settings.items():
        best_value = best_settings.get(key, value)
        if value != best_value:
            raise CheckpointError(
                f"{folder / BEST_FOLDER} is of another run than {CONFIG_FILE} beside "
                f"it: {key} is {best_value!r} there, {value!r} here; copy both from "
                "the same run"
            )
