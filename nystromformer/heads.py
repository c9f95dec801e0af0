"""Models of a task: an encoder, and heads of classes or of tokens.

Letters: B batch, L length, D model dim, F features of an input, C classes, V words.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.dropout import dropout, split_rng
from nystromformer.encoder import Encoder, check_arrays
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import jax_gelu, kernel_init, make_dense, make_norm
from nystromformer.ops import at_least_float32, einsum
from nystromformer.pooling import POOLINGS, pool
from nystromformer.streams import HEAD_DROPOUT
from nystromformer.validation import check_choice


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
      pooling: "mean", "padded_mean", "max", "last" or "cls_token"; see `pooling.pool`.
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


def _check_no_cls_token(config: EncoderConfig) -> None:
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
        _check_no_cls_token(config)
        self.encoder = Encoder(config, rngs=rngs)
        self.out = make_linear(config.model_dim, num_classes, rngs=rngs)

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        return self.out(x)


class TokenDecoder(Model):
    """A model that predicts tokens from the encoder's vectors (`decode`).

    The decoder is Linear, GELU, LayerNorm and the embedding, with a bias of its own, as
    in BERT and the published Nyströmformer.
    """

    def add_decoder(self, config: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Makes the decoder's parameters, behind those of the encoder.

        Raises:
          ValueError: a config whose inputs are features.
        """
        if config.vocab_size is None:
            raise ValueError(
                "a decoder predicts token ids, but the inputs are features (input_dim="
                f"{config.input_dim}): take a model without a decoder"
            )
        self.transform = make_dense(config, config.model_dim, config.model_dim, rngs)
        self.norm = make_norm(config, rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))
        self.approximate = config.gelu == "tanh"

    def decode(self, x: jax.Array) -> jax.Array:
        """The encoder's vectors [..., D] -> logits [..., V] in at least float32."""
        hidden = jax_gelu(self.transform(x), approximate=self.approximate)
        embedding = self.encoder.embedding.embedding[...].astype(x.dtype)
        logits = einsum("...d,vd->...v", self.norm(hidden), embedding)
        return logits + jnp.broadcast_to(self.bias[...], logits.shape)


class DenoisingClassifier(TokenDecoder, SequenceClassifier):
    """A classifier of one sequence that also predicts masked tokens."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        pooling: str = "mean",
        rngs: nnx.Rngs,
    ):
        super().__init__(config, num_classes=num_classes, pooling=pooling, rngs=rngs)
        self.add_decoder(config, rngs)


class DenoisingPairClassifier(DenoisingClassifier, PairClassifier):
    """A classifier of two sequences that also predicts masked tokens."""


class MaskedLanguageModel(TokenDecoder):
    """A token for each position."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        _check_no_cls_token(config)
        self.encoder = Encoder(config, rngs=rngs)
        self.add_decoder(config, rngs)

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        return self.decode(x)


class MaskedOrderModel(MaskedLanguageModel):
    """Masked tokens, and the order of two parts from the first vector, as in BERT."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.pooler = make_linear(config.model_dim, config.model_dim, rngs=rngs)
        self.ordered = make_linear(config.model_dim, 2, rngs=rngs)

    def order(self, x: jax.Array) -> jax.Array:
        """The encoder's vectors [B, L, D] -> logits [B, 2] in at least float32."""
        first = x[:, 0].astype(at_least_float32(x.dtype))
        return self.ordered(jnp.tanh(self.pooler(first)))


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
            dropout_rng = jax.random.fold_in(dropout_rng, HEAD_DROPOUT)
        rngs = split_rng(dropout_rng, 2)
        first = x[:, 0].astype(at_least_float32(x.dtype))
        hidden = self.pooler(dropout(first, self.dropout_rate, rngs[0]))
        if self.activation == "tanh":
            hidden = jnp.tanh(hidden)
        else:
            hidden = jax_gelu(hidden, approximate=self.approximate)
        return self.out(dropout(hidden, self.dropout_rate, rngs[1]))
