"""The training step can be lowered for accelerators, which does not say that it runs.

Exact attention as XLA's products alone: cuDNN's kernel cannot be lowered without cuDNN.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import SequenceClassifier
from nystromformer.training.data import Data
from nystromformer.training.objective import Classification
from nystromformer.training.step import graphdef_of, make_init, make_train_chunk
from tests.attention.cases import OPTIONS
from tests.training.conftest import CLASSES, VOCAB, make_split

LENGTH = 32


@pytest.mark.parametrize("name", ATTENTIONS)
def test_train_chunk_can_be_lowered_for_accelerators(name, optimizer):
    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        config = EncoderConfig(
            vocab_size=VOCAB,
            max_length=LENGTH,
            num_layers=1,
            model_dim=8,
            mlp_dim=8,
            dtype=jnp.dtype("bfloat16"),
            attention=name,
            attention_options=OPTIONS.get(name, {}),
        )
        return SequenceClassifier(config, num_classes=CLASSES, rngs=rngs)

    init = make_init(make_model, optimizer, Classification())
    state = jax.eval_shape(init, np.uint32(0))
    chunk: Any = make_train_chunk(graphdef_of(make_model), optimizer, Classification())
    traced = chunk.trace(
        state,
        Data.put(make_split(0, 8, LENGTH)),
        np.zeros((2, 4), np.int32),
        np.int32(2),
    )
    for platform in ("cuda", "tpu"):
        program = traced.lower(lowering_platforms=(platform,)).as_text()
        assert "stablehlo.while" in program
