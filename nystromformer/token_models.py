"""Models of tokens: masked ones, beside a classifier or an order of parts; no head.

Letters: B batch, L length, D model dim, V words.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.classifiers import (
    Model,
    PairClassifier,
    SequenceClassifier,
    check_no_cls_token,
    make_linear,
)
from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import jax_gelu, make_dense, make_norm
from nystromformer.precision import at_least_float32, einsum


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
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))
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
        check_no_cls_token(config)
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


class EncoderModel(Model):
    """An encoder without a head, as published weights may be: vectors [B, L, D]."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder

    def read(
        self, x: jax.Array, mask: jax.Array | None, dropout_rng: jax.Array | None
    ) -> jax.Array:
        return x
