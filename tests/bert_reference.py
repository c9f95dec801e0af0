"""BERT and RoBERTa by their papers in float64 numpy, from tensors of transformers."""

import numpy as np

from tests import paper
from tests.bert_folder import DECODERS, EPSILON, D, N

Array = np.ndarray
# The positions in front of the first token's.
RESERVED = {"bert": 0, "roberta": 2}
# The modules of the heads.
TOKEN_DENSE = {"bert": "cls.predictions.transform.dense", "roberta": "lm_head.dense"}
TOKEN_NORM = {
    "bert": "cls.predictions.transform.LayerNorm",
    "roberta": "lm_head.layer_norm",
}
POOLER = {"bert": "bert.pooler.dense", "roberta": "classifier.dense"}
CLASSIFIER = {"bert": "classifier", "roberta": "classifier.out_proj"}


class Reference:
    """The encoder of one sequence without padding, and its heads.

    gelu: that of the encoder, "erf" or "tanh".
    """

    def __init__(self, tensors: dict[str, Array], kind: str, gelu: str = "erf"):
        self.tensors = {name: np.asarray(x, float) for name, x in tensors.items()}
        self.kind = kind
        self.gelu = gelu

    def table(self, name: str) -> Array:
        return self.tensors[f"{self.kind}.embeddings.{name}_embeddings.weight"]

    def dense(self, name: str, x: Array) -> Array:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        scale = self.tensors[f"{name}.weight"]
        return centred / deviation * scale + self.tensors[f"{name}.bias"]

    def embed(self, inputs: Array, token_types: Array) -> Array:
        positions = RESERVED[self.kind] + np.arange(len(inputs))
        x = self.table("word")[inputs] + self.table("position")[positions]
        x = x + self.table("token_type")[token_types]
        return self.norm(f"{self.kind}.embeddings.LayerNorm", x)

    def attend(self, name: str, x: Array) -> Array:
        """Exact attention of all heads, by the projections of that name."""
        query = self.dense(f"{name}.query", x)
        key = self.dense(f"{name}.key", x)
        value = self.dense(f"{name}.value", x)
        everyone = list(range(len(x)))
        out = np.zeros(x.shape)
        for n in range(N):
            head = slice(n * D // N, (n + 1) * D // N)
            out[:, head] = paper.attention(
                query[:, head], key[:, head], value[:, head], everyone
            )
        return out

    def layer(self, name: str, x: Array) -> Array:
        attended = self.attend(f"{name}.attention.self", x)
        x = x + self.dense(f"{name}.attention.output.dense", attended)
        x = self.norm(f"{name}.attention.output.LayerNorm", x)
        hidden = paper.gelu(self.dense(f"{name}.intermediate.dense", x), self.gelu)
        x = x + self.dense(f"{name}.output.dense", hidden)
        return self.norm(f"{name}.output.LayerNorm", x)

    def encode(self, inputs: Array, token_types: Array) -> Array:
        """The vectors [L, D] of token ids and their types [L]."""
        x = self.embed(inputs, token_types)
        for layer in range(2):
            x = self.layer(f"{self.kind}.encoder.layer.{layer}", x)
        return x

    def tokens(self, x: Array) -> Array:
        """The logits of tokens [L, V]."""
        # RoBERTa's head has the exact GELU, whatever hidden_act is.
        gelu = "erf" if self.kind == "roberta" else self.gelu
        hidden = paper.gelu(self.dense(TOKEN_DENSE[self.kind], x), gelu)
        hidden = self.norm(TOKEN_NORM[self.kind], hidden)
        bias = self.tensors[f"{DECODERS[self.kind]}.bias"]
        return hidden @ self.table("word").T + bias

    def classes(self, x: Array) -> Array:
        """The logits of classes [C], from the first vector."""
        pooled = np.tanh(self.dense(POOLER[self.kind], x[0]))
        return self.dense(CLASSIFIER[self.kind], pooled)
