"""Models that classify: an encoder, a pooling in which padding has no part, a head.

Letters: B batch, L length, D model dim, F features of an input, C classes.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.dropout import STREAM_OF_HEAD, dropout, split_rng
from nystromformer.encoder import Encoder, check_arrays
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import jax_gelu, kernel_init
from nystromformer.masks import zero_masked
from nystromformer.precision import at_least_float32
from nystromformer.validation import check_choice

POOLINGS = ("mean", "padded_mean", "max", "last", "cls_token")


def make_linear(in_features: int, out_features: int, *, rngs: nnx.Rngs) -> nnx.Linear:
    """A linear layer in float32."""
    return nnx.Linear(in_features, out_features, kernel_init=kernel_init, rngs=rngs)


class Head(nnx.Module):
    """Linear, ReLU, Linear, in float32."""

    def __init__(
        self, in_features: int, hidden: int, num_classes: int, *, rngs: nnx.Rngs
    ):
        self.hidden = make_linear(in_features, hidden, rngs=rngs)
        self.out = make_linear(hidden, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, features] -> [B, C]."""
        return self.out(jax.nn.relu(self.hidden(x)))


class Model(nnx.Module):
    """The base class of all models: an encoder, and a `read` that a subclass writes."""

    num_inputs = 1  # the number of sequences of an example
    encoder: Encoder

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        token_types: jax.Array | None = None,
    ) -> jax.Array:
        """The logits of classes or of tokens.

        Args:
          inputs: token ids [B, L], or features [B, L, F]; at padding, anything. Those
            of pairs are [B, 2, L] or [B, 2, L, F], and the next ones have an axis of 2.
          mask: [B, L] bool, True = a token, False = padding; None = all are tokens.
          dropout_rng: a key, or None for no dropout.
          token_types: [B, L] ids; None = as the separators say, or 0 without one.

        Returns:
          [B, C], or [B, L, C] of each token, in at least float32.

        Raises:
          ValueError: if inputs, mask or token_types have a different shape, ids are no
            integers, the mask is not boolean, or the encoder has no token types to add.
        """
        if self.num_inputs == 2:
            self._check_pairs(inputs, mask=mask, token_types=token_types)
            # The encoder sees the sequences of a pair as two examples, [2 B, L].
            inputs, mask, token_types = jax.tree.map(
                lambda x: x.reshape(-1, *x.shape[2:]), (inputs, mask, token_types)
            )
        x, mask = self.encoder(inputs, mask, dropout_rng, token_types)
        return self.read(x, mask, dropout_rng)

    def _check_pairs(self, inputs: jax.Array, **arrays: jax.Array | None) -> None:
        check_arrays(inputs=inputs, **arrays)
        if inputs.ndim < 3 or inputs.shape[1] != 2:
            raise ValueError(
                f"inputs must be [B, 2, L] or [B, 2, L, F], got {inputs.shape}"
            )
        for name, array in arrays.items():
            if array is not None and array.shape != inputs.shape[:3]:
                raise ValueError(
                    f"{name} must be [B, 2, L], here {inputs.shape[:3]}, got "
                    f"{array.shape}"
                )

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        """The logits of the encoder's vectors x [B, L, D] with mask [B, L]."""
        raise NotImplementedError


class SequenceClassifier(Model):
    """One sequence, one class.

    Args:
      config: the settings of the encoder.
      num_classes: C.
      pooling: "mean", "padded_mean", "max", "last" or "cls_token"; see `pool`.
      rngs: the keys for the initial values of parameters.
    """

    num_pooled_vectors = 1  # vectors that the head sees of an example

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        pooling: str = "mean",
        rngs: nnx.Rngs,
    ):
        check_choice("pooling", pooling, POOLINGS)
        if config.cls_token and pooling != "cls_token":
            raise ValueError('cls_token=True needs pooling="cls_token"')
        self.pooling = pooling
        self.max_length = config.max_length
        config = dataclasses.replace(config, cls_token=pooling == "cls_token")
        self.encoder = Encoder(config, rngs=rngs)
        num_features = self.num_pooled_vectors * config.model_dim
        self.head = Head(num_features, config.mlp_dim, num_classes, rngs=rngs)

    def pool(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """x [B, L, D], mask [B, L] -> [B, D] in at least float32."""
        return pool(self.pooling, x, mask, max_length=self.max_length)

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        return self.head(self.pool(x, mask))


class PairClassifier(SequenceClassifier):
    """Two sequences, one class: one encoder, a head on [x₀, x₁, x₀·x₁, x₀ − x₁]."""

    num_inputs = 2
    num_pooled_vectors = 4

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        pooled = self.pool(x, mask).reshape(-1, 2, x.shape[-1])
        x0 = pooled[:, 0]
        x1 = pooled[:, 1]
        return self.head(jnp.concatenate([x0, x1, x0 * x1, x0 - x1], axis=-1))


def check_no_cls_token(config: EncoderConfig) -> None:
    """Raises ValueError if the encoder puts a [CLS] vector in front of the tokens."""
    if config.cls_token:
        raise ValueError(
            "cls_token=True puts a vector in front of those of the tokens, and this "
            "model has logits for each token: take cls_token=False"
        )


class TokenClassifier(Model):
    """A class for each token, by a linear layer in float32, as in BERT.

    A hidden layer of ReLU, as `Head` has, may die before the vectors of a sequence
    differ much: then nothing is learnt.
    """

    def __init__(self, config: EncoderConfig, *, num_classes: int, rngs: nnx.Rngs):
        check_no_cls_token(config)
        self.encoder = Encoder(config, rngs=rngs)
        self.out = make_linear(config.model_dim, num_classes, rngs=rngs)

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        return self.out(x)


class FirstTokenClassifier(Model):
    """The class of one sequence, or of a pair between special tokens, from [CLS].

    Dropout, Linear, activation, dropout, Linear on the first vector, in at least
    float32. The first dropout is not in BERT's pooler, which has the tanh.

    Args:
      config: the settings of the encoder.
      num_classes: C.
      activation: "gelu", as in the published Nyströmformer, or "tanh".
      rngs: the keys for the initial values of parameters.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        activation: str = "gelu",
        rngs: nnx.Rngs,
    ):
        self.encoder = Encoder(config, rngs=rngs)
        check_choice("activation", activation, ("gelu", "tanh"))
        self.pooler = make_linear(config.model_dim, config.model_dim, rngs=rngs)
        self.out = make_linear(config.model_dim, num_classes, rngs=rngs)
        self.activation = activation
        self.approximate = config.gelu == "tanh"
        self.dropout_rate = config.dropout_rate

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        if dropout_rng is not None:
            # The encoder has split this key: the head needs other numbers.
            dropout_rng = jax.random.fold_in(dropout_rng, STREAM_OF_HEAD)
        rngs = split_rng(dropout_rng, 2)
        first = x[:, 0].astype(at_least_float32(x.dtype))
        hidden = self.pooler(dropout(first, self.dropout_rate, rngs[0]))
        if self.activation == "tanh":
            hidden = jnp.tanh(hidden)
        else:
            hidden = jax_gelu(hidden, approximate=self.approximate)
        return self.out(dropout(hidden, self.dropout_rate, rngs[1]))


def pool(
    pooling: str, x: jax.Array, mask: jax.Array | None, *, max_length: int
) -> jax.Array:
    """Pools the vectors of a sequence.

    Args:
      pooling: a name in POOLINGS. "mean" or "max" over the valid tokens;
        "padded_mean", their sum divided by max_length, as published; "last", the last
        valid token; or "cls_token", the first vector, which is a learned one.
      x: [B, L, D].
      mask: [B, L] bool, True = valid; None = all.
      max_length: the max_length of the encoder, the divisor of "padded_mean".

    Returns:
      [B, D] in at least float32.
    """
    if pooling == "mean":
        return pool_mean(x, mask)
    if pooling == "padded_mean":
        return pool_padded_mean(x, mask, max_length)
    if pooling == "max":
        return pool_max(x, mask)
    if pooling == "last":
        return pool_last(x, mask)
    return x[:, 0].astype(at_least_float32(x.dtype))


def pool_mean(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The mean over valid tokens.

    Args:
      x: [B, L, D].
      mask: [B, L] bool, True = valid; None = all.

    Returns:
      [B, D] in at least float32, zero where no token is valid.
    """
    dtype = at_least_float32(x.dtype)
    if mask is None:
        return x.mean(1, dtype=dtype)
    total = zero_masked(x, mask).sum(1, dtype=dtype)
    num_valid = jnp.maximum(mask.sum(1, dtype=dtype), 1)
    return total / num_valid[:, None]


def pool_padded_mean(
    x: jax.Array, mask: jax.Array | None, max_length: int
) -> jax.Array:
    """The sum over valid tokens divided by max_length; the rest as in `pool_mean`."""
    total = zero_masked(x, mask).sum(1, dtype=at_least_float32(x.dtype))
    return total / max_length


def pool_max(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The maximum over valid tokens; arguments and result are those of `pool_mean`."""
    x = x.astype(at_least_float32(x.dtype))
    if mask is None:
        return x.max(1)
    lowest = jnp.finfo(x.dtype).min
    largest = jnp.where(mask[:, :, None], x, lowest).max(1)
    has_tokens = mask.any(1)
    return jnp.where(has_tokens[:, None], largest, 0)


def pool_last(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The vector of the last valid token; arguments and result as in `pool_mean`."""
    x = x.astype(at_least_float32(x.dtype))
    if mask is None:
        return x[:, -1]
    num_behind = jnp.argmax(mask[:, ::-1], axis=1)  # tokens behind the last valid one
    last = x.shape[1] - 1 - num_behind
    tokens = zero_masked(x, mask)
    return jnp.take_along_axis(tokens, last[:, None, None], axis=1)[:, 0]
