"""Twelve sequences, a small model of their classes and tokens, and its objective."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.token_models import DenoisingClassifier
from nystromformer.training.data import Batch
from nystromformer.training.masked import ClassificationDenoising

# The examples, the length of a sequence, the vocabulary and the classes.
B = 12
L = 24
V = 11
C = 3
MASK = V
SPECIAL = 2
LENGTHS = np.array([24, 1, 9, 24, 3, 17, 8, 24, 5, 11, 2, 20])
VALID = np.arange(L) < LENGTHS[:, None]
TOKENS = np.random.default_rng(0).integers(3, V, (B, L))
INPUTS = np.where(VALID, TOKENS, 0)
LABELS = np.arange(B) % C
# A training step has a key, an evaluation none.
KEY = jax.random.key(5)


def make_objective(
    cls: type[ClassificationDenoising] = ClassificationDenoising, **options: Any
) -> ClassificationDenoising:
    return cls(vocab_size=V, mask_token=MASK, special_tokens=(SPECIAL,), **options)


def make_model(
    rngs: nnx.Rngs,
    head: Callable[..., Any] = DenoisingClassifier,
    pooling: str = "mean",
) -> Any:
    config = EncoderConfig(
        vocab_size=V + 1,
        max_length=L,
        num_layers=1,
        model_dim=8,
        mlp_dim=8,
        attention="softmax",
        dropout_rate=0.0,
    )
    model = head(config, num_classes=C, pooling=pooling, rngs=rngs)
    # With larger embeddings the tokens matter beside the positions.
    model.encoder.embedding.embedding[...] *= 30
    return model


def make_batch(num_rows: int = B) -> Batch:
    """The first sequences, each with weight 1."""
    return Batch(
        inputs=jnp.asarray(INPUTS[:num_rows]),
        mask=jnp.asarray(VALID[:num_rows]),
        labels=jnp.asarray(LABELS[:num_rows]),
        weights=jnp.ones(num_rows),
        example_ids=jnp.arange(num_rows),
    )
