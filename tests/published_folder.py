"""A folder of published weights, as another program would write it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

# Vocabulary, length, the sizes of model and MLP, heads, the size of the kernel that
# convolves the values, and classes.
V = 23
L = 13
D = 6
F = 17
N = 3
K = 5
C = 7
SETTINGS = {
    "model_type": "nystromformer",
    "vocab_size": V,
    "max_position_embeddings": L,
    "num_hidden_layers": 2,
    "num_attention_heads": N,
    "hidden_size": D,
    "intermediate_size": F,
    "type_vocab_size": 2,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-5,
    "conv_kernel_size": K,
    "num_landmarks": 4,
    "segment_means_seq_len": L,
}

# The names and shapes of transformers' files, where linear layers are [out, in].
EMBEDDING_SHAPES = {
    "word_embeddings.weight": (V, D),
    "position_embeddings.weight": (L + 2, D),
    "token_type_embeddings.weight": (2, D),
    "LayerNorm.weight": (D,),
    "LayerNorm.bias": (D,),
}
LAYER_SHAPES = {
    "attention.self.query.weight": (D, D),
    "attention.self.query.bias": (D,),
    "attention.self.key.weight": (D, D),
    "attention.self.key.bias": (D,),
    "attention.self.value.weight": (D, D),
    "attention.self.value.bias": (D,),
    "attention.self.conv.weight": (N, 1, K, 1),
    "attention.output.dense.weight": (D, D),
    "attention.output.dense.bias": (D,),
    "attention.output.LayerNorm.weight": (D,),
    "attention.output.LayerNorm.bias": (D,),
    "intermediate.dense.weight": (F, D),
    "intermediate.dense.bias": (F,),
    "output.dense.weight": (D, F),
    "output.dense.bias": (D,),
    "output.LayerNorm.weight": (D,),
    "output.LayerNorm.bias": (D,),
}
HEAD_SHAPES = {
    "masked_lm": {
        "cls.predictions.bias": (V,),
        "cls.predictions.transform.dense.weight": (D, D),
        "cls.predictions.transform.dense.bias": (D,),
        "cls.predictions.transform.LayerNorm.weight": (D,),
        "cls.predictions.transform.LayerNorm.bias": (D,),
    },
    "classification": {
        "classifier.dense.weight": (D, D),
        "classifier.dense.bias": (D,),
        "classifier.out_proj.weight": (C, D),
        "classifier.out_proj.bias": (C,),
    },
    None: {},
}
BASE = "nystromformer."
WORDS = f"{BASE}embeddings.word_embeddings.weight"
POSITIONS = f"{BASE}embeddings.position_embeddings.weight"
QUERY = f"{BASE}encoder.layer.1.attention.self.query.weight"
EXPAND = f"{BASE}encoder.layer.0.intermediate.dense.weight"
DECODER = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"


def random_tensors(head: str | None) -> dict[str, np.ndarray]:
    """The tensors of a published file, by the table above, with random numbers."""
    base = "" if head is None else BASE
    shapes = dict(HEAD_SHAPES[head])
    for name, shape in EMBEDDING_SHAPES.items():
        shapes[f"{base}embeddings.{name}"] = shape
    for layer in range(2):
        for name, shape in LAYER_SHAPES.items():
            shapes[f"{base}encoder.layer.{layer}.{name}"] = shape
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def write_tensors(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    contiguous = {name: tensor.copy("C") for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")


def make_published_folder(
    folder: Path, head: str | None = "masked_lm", **changed_settings: Any
) -> dict[str, np.ndarray]:
    """Writes a folder as another program would, and returns its tensors."""
    folder.mkdir(exist_ok=True)
    tensors = random_tensors(head)
    write_tensors(folder, tensors)
    (folder / "config.json").write_text(json.dumps(SETTINGS | changed_settings))
    return tensors
