"""A run of scripts/train.py with the best weights that it has found."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax import nnx

from nystromformer.errors import CheckpointError, ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.workdir import TOKENIZER_FILE, read_config, read_result
from nystromformer.factors import nystrom_rows, softmax_matrix
from nystromformer.heads import MaskedLanguageModel
from nystromformer.training.checkpoint import load_weights
from nystromformer.training.data import HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.step import Weights
from nystromformer.validation import check_range

PREDICT_BATCH = 32  # examples
NYSTROM_OPTIONS = ("num_landmarks", "num_pinv_iters", "landmark_padding")
NYSTROM_OPTIONS += ("landmarks", "landmark_seed", "pinv")


class Prediction(NamedTuple):
    """What a run says of B examples of C classes.

    Of a task that labels tokens the arrays are [B, max_length] and [B, max_length, C]:
    every token gets a class, those without a label and the padding too.

    classes: int [B], the most probable.
    probabilities: float32 [B, C].
    labels: str [B], the names of `classes`.
    """

    classes: np.ndarray
    probabilities: np.ndarray
    labels: np.ndarray


class Layer(NamedTuple):
    """Query, key and value float32 [B, L, N, H] of a layer, and mask bool [B, L]."""

    query: Any
    key: Any
    value: Any
    mask: Any

    def example(self, index: int) -> list[np.ndarray]:
        """Query, key, value float64 [L, N, H], in padding zero, and mask [L] of one."""
        *arrays, mask = (x[index] for x in self)
        valid, wide = mask[:, None, None], map(np.float64, arrays)
        return [*(np.where(valid, x, 0) for x in wide), mask]


class TrainedRun:
    """The model of a run, with its config, task and result.

    weights: the best on validation so far, on the host.
    result: the content of result.json, None where the run is not finished.
    """

    def __init__(
        self, experiment: Experiment, weights: Weights, result: dict[str, Any] | None
    ):
        self.experiment, self.weights, self.result = experiment, weights, result
        self.config, self.task = experiment.config, experiment.task

    @functools.cached_property
    def model(self) -> Any:
        """The model with the best weights: inputs and a mask to logits.

        An attention that is sensitive to padding (`landmark_padding="count"`,
        `kernel="published"`) needs inputs of the task's `max_length`; `predict` pads.
        """
        return nnx.merge(self.experiment.graphdef, *jax.device_put(self.weights))

    def evaluate(self, split: str, data_dir: str | None = None) -> dict[str, float]:
        """The metrics of a split, and its number of examples."""
        examples = self.task.load(split, data_dir or self.config.task.data_dir)
        known = ((self.result or {}).get("data_sha256") or {}).get(split)
        if known not in (None, examples.content_hash):
            print(f"note: this {split} split is not the run's", file=sys.stderr)
        programs, best = self.experiment.make_programs(), jax.device_put(self.weights)
        train, data = self.config.train, HostSplit.from_split(examples)
        size = train.batch_size // train.grad_accum_steps
        return evaluate(programs, best, data, size, train.length_buckets) or {}

    def predict(
        self, inputs: Any, lengths: np.ndarray | Sequence[int] | None = None
    ) -> Prediction:
        """Classifies examples.

        Args:
          inputs: texts, or pairs of texts where an example has two; or token ids
            [B, L] ([B, 2, L] with two inputs), L ≤ the task's max_length.
          lengths: of token ids, [B] ([B, 2]); None = they have no padding, which is an
            error for ids that end in that of padding.

        Raises DataError and ValueError where the task has no such inputs or no classes.
        """
        if isinstance(self.model, MaskedLanguageModel):
            raise ValueError(f"{self.config.objective.name} predicts no classes")
        pair = (2,) * (self.task.num_inputs == 2)
        tokens, mask = self._read(inputs, lengths, *pair)
        of_tokens = (self.task.max_length,) if self.task.num_labels else ()
        shape = (len(tokens), *of_tokens, self.task.num_classes)
        found = np.zeros(shape, np.float32)
        for start in range(0, len(tokens), PREDICT_BATCH):
            rows = np.arange(start, start + PREDICT_BATCH).clip(max=len(tokens) - 1)
            found[rows] = _probabilities(self.model, tokens[rows], mask[rows])
        classes = found.argmax(-1)
        return Prediction(classes, found, np.array(self.task.class_names)[classes])

    def layers(self, inputs: Any, lengths: Any = None) -> list[Layer]:
        """The queries, keys and values of each layer, [B, L, N, H], and its mask.

        inputs, lengths: as of `predict`; of a task with two inputs, one of them.
        """
        encoder, examples = nnx.split(self.model.encoder), self._read(inputs, lengths)
        return jax.device_get(record_qkv(*encoder, *examples))

    def attention(
        self, inputs: Any, layer: int, head: int, rows: Any, lengths: Any = None
    ) -> np.ndarray:
        """Rows of the attention matrix of one head: [B, R, L], L + 1 with [CLS].

        Its columns are [CLS] and what `task.encode` gives; those of padding are 0.
        With nystrom the rows of its approximation, in O(L · M): they need not sum to 1.

        Args:
          inputs, lengths: as of `layers`.
          layer, head: which, from 0.
          rows: [R] queries; 0 is [CLS] where the model has one.

        ValueError for a layer, head or row that does not exist, or an attention without
        a matrix.
        """
        name, options = self.config.attention.name, self.config.attention.options
        if name not in ("nystrom", "softmax") or "per_batch" in options.values():
            raise ValueError("rows need softmax, or nystrom with pinv_init=per_matrix")
        num_layers, num_heads = (
            self.config.model.num_layers,
            self.config.model.num_heads,
        )
        check_range("layer", layer, -num_layers, num_layers - 1)
        check_range("head", head, -num_heads, num_heads - 1)
        found = self.layers(inputs, lengths)[layer]
        at, length = np.atleast_1d(rows), found.query.shape[1]
        if not np.isin(at, np.arange(length)).all():
            raise ValueError(f"rows must be from 0 to {length - 1}, got {rows}")
        options = {x: options[x] for x in NYSTROM_OPTIONS if x in options}

        def one(query: jax.Array, key: jax.Array, mask: jax.Array) -> jax.Array:
            if name == "softmax":
                return softmax_matrix(query[at], key, mask)
            return nystrom_rows(query, key, jnp.asarray(at), mask, **options)

        query, key = (jnp.float32(x[:, :, head]) for x in (found.query, found.key))
        return np.asarray(jax.jit(jax.vmap(one))(query, key, found.mask))

    def _read(
        self, inputs: Any, lengths: Any, *pair: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Token ids and their mask, [B, *pair, max_length], of texts or token ids."""
        max_length = self.task.max_length
        dtype = getattr(inputs, "dtype", np.dtype(object))
        if getattr(dtype, "kind", "i") in "biuf":  # numpy's, or another library's
            tokens = self._check_tokens(np.asarray(inputs), *pair)
            lengths = self._check_lengths(tokens, lengths)
        elif lengths is not None:
            raise ValueError("lengths are of token ids: leave them out with texts")
        else:
            tokens, lengths = self._encode(inputs, *pair)
        mask = np.arange(max_length) < lengths[..., None]
        padding = [(0, 0)] * (tokens.ndim - 1) + [(0, max_length - tokens.shape[-1])]
        return np.pad(tokens.astype(np.int32), padding), mask

    def _encode(self, inputs: Any, *pair: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids [B, *pair, max_length] of texts, and their lengths [B, *pair]."""
        texts = np.atleast_1d(np.array(inputs, object))
        has_pairs = 2 in (*pair, self.task.num_texts)
        are_texts = all(isinstance(text, str) for text in texts.flat)
        if texts.shape[1:] != ((2,) if has_pairs else ()) or not are_texts:
            kind = "pairs of texts" if has_pairs else "texts"
            raise ValueError(
                f"inputs must be a list of {kind}, or an array of token ids; got "
                f"{inputs!r:.60}"
            )
        tokens, lengths = self.task.encode([*(texts.ravel() if pair else texts)])
        return tokens.reshape(-1, *pair, self.task.max_length), lengths.reshape(
            -1, *pair
        )

    def _check_tokens(self, tokens: np.ndarray, *pair: int) -> np.ndarray:
        """Returns token ids [B, *pair, L] of its vocabulary; ValueError for others."""
        max_length, vocab_size = self.task.max_length, self.task.vocab_size
        has_shape = tokens.ndim == 2 + len(pair) and tokens.shape[1:-1] == pair
        if not has_shape or tokens.shape[-1] > max_length:
            axes = "[B, 2, L]" if pair else "[B, L]"
            raise ValueError(
                f"token ids must be {axes} with L ≤ {max_length}, got {tokens.shape}"
            )
        if not np.isin(tokens, np.arange(vocab_size)).all():
            raise ValueError(f"token ids must be from 0 to {vocab_size - 1}")
        return tokens

    def _check_lengths(self, tokens: np.ndarray, lengths: Any) -> np.ndarray:
        """Returns lengths int [B, *pair] of token ids; ValueError if they cannot be."""
        shape, num_columns = tokens.shape[:-1], tokens.shape[-1]
        if lengths is None:
            if self.task.zero_is_padding and not tokens[..., -1:].all():
                raise ValueError(
                    "token ids end in 0, the padding: give lengths, the number of "
                    "tokens of each row, which task.encode returns"
                )
            return np.full(shape, num_columns)
        lengths = np.asarray(lengths)
        if lengths.shape != shape or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"lengths must be integers of shape {shape}, one for each row of token "
                f"ids, got {lengths!r:.60}"
            )
        if not np.isin(lengths, np.arange(num_columns + 1)).all():
            raise ValueError(
                f"lengths must be from 0 to {num_columns}, the columns of the token "
                f"ids, got {lengths.min()} to {lengths.max()}"
            )
        return lengths


@nnx.jit
def _probabilities(model: Any, tokens: Any, mask: Any) -> jax.Array:
    return jax.nn.softmax(model(tokens, mask))


def load_run(
    workdir: epath.PathLike, source_dir: epath.PathLike | None = None
) -> TrainedRun:
    """The run of a workdir of scripts/train.py, a folder or gs://BUCKET/RUN.

    source_dir: where the sources of its task are now; None = where they were.
    ConfigError if it is no run; CheckpointError if its weights are damaged or none yet.
    """
    folder = epath.Path(workdir).expanduser()
    config, words = read_config(folder), folder / TOKENIZER_FILE
    if source_dir:
        config.task.options["source_dir"] = str(source_dir)
    if config.task.options.get("tokenizer") not in (None, "bpe", "byte"):
        config.task.options["tokenizer"] = str(words)  # wherever the original is now
    experiment = Experiment(config)
    if experiment.task.tokenizer == "bpe":  # learnt; the data need not be there
        experiment.task.use_tokenizer(str(words))
    result = read_result(folder)
    if result is None and not (folder / "best").exists():
        raise CheckpointError(f"{folder} has not validated yet: resume its training")
    weights, _ = load_weights(folder / "best", experiment.weight_shapes)
    return TrainedRun(experiment, weights, result)


@functools.partial(jax.jit, static_argnums=0)
def record_qkv(graphdef: Any, weights: Any, tokens: Any, mask: Any) -> list[Layer]:
    """The inputs of the attentions of an encoder for tokens [B, L], without dropout.

    ConfigError if the attention has no queries and keys.
    """
    layers: list[Layer] = []

    def recording(attention: Any) -> Callable[..., jax.Array]:
        def attend(*qkv: jax.Array, mask: jax.Array, **flax: Any) -> jax.Array:
            layers.append(Layer(*map(jnp.float32, qkv), mask=mask[:, 0, 0]))
            return attention(*qkv, mask=mask, **flax)

        return attend

    encoder = nnx.merge(graphdef, weights)
    encoder.remat = "none"
    for block in encoder.blocks:
        if block.attention.num_projections == 1:
            raise ConfigError("its attention has no queries and keys")
        block.attention.attention = recording(block.attention.attention)
    encoder(tokens, mask)
    return layers
