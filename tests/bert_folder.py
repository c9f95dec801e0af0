"""A folder of weights of BERT or RoBERTa, as transformers would write it.

The numbers are random, and the names are those of transformers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

# Vocabulary, length, the sizes of model and MLP, heads, and classes.
V = 23
L = 13
D = 6
F = 17
N = 3
C = 4
EPSILON = 0.01  # It is large enough to be seen.
SETTINGS: dict[str, dict[str, Any]] = {
    "bert": {
        "model_type": "bert",
        "max_position_embeddings": L,
        "type_vocab_size": 2,
        "pad_token_id": 0,
    },
    "roberta": {
        "model_type": "roberta",
        "max_position_embeddings": L + 2,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    },
}
COMMON_SETTINGS = {
    "vocab_size": V,
    "num_hidden_layers": 2,
    "num_attention_heads": N,
    "hidden_size": D,
    "intermediate_size": F,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.2,
    "layer_norm_eps": EPSILON,
}

# The shapes of the weights of modules, which have a bias each. Linear layers are
# [out, in].
LAYER_SHAPES = {
    "attention.self.query": (D, D),
    "attention.self.key": (D, D),
    "attention.self.value": (D, D),
    "attention.output.dense": (D, D),
    "attention.output.LayerNorm": (D,),
    "intermediate.dense": (F, D),
    "output.dense": (D, F),
    "output.LayerNorm": (D,),
}
HEAD_SHAPES = {
    "bert": {
        "cls.predictions.transform.dense": (D, D),
        "cls.predictions.transform.LayerNorm": (D,),
        "bert.pooler.dense": (D, D),
        "cls.seq_relationship": (2, D),
    },
    "roberta": {"lm_head.dense": (D, D), "lm_head.layer_norm": (D,)},
}
CLASSIFIER_SHAPES = {
    "bert": {"bert.pooler.dense": (D, D), "classifier": (C, D)},
    "roberta": {"classifier.dense": (D, D), "classifier.out_proj": (C, D)},
}
DECODERS = {"bert": "cls.predictions", "roberta": "lm_head"}
KINDS = tuple(SETTINGS)

INPUTS = np.random.default_rng(1).integers(2, V, (2, L))
LENGTHS = np.array([L, 8])
MASK = np.arange(L) < LENGTHS[:, None]


def token_types_of(kind: str) -> np.ndarray:
    """Types of both sequences [2, L]; RoBERTa has one type alone."""
    if kind == "roberta":
        return np.zeros((2, L), int)
    return np.tile(np.arange(L) > 4, (2, 1)).astype(int)


def random_tensors(
    kind: str, head_shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The tensors of a file: weight and bias of each module, and the embeddings."""
    modules = dict(head_shapes)
    modules[f"{kind}.embeddings.LayerNorm"] = (D,)
    for layer in range(2):
        for name, shape in LAYER_SHAPES.items():
            modules[f"{kind}.encoder.layer.{layer}.{name}"] = shape

    num_positions = SETTINGS[kind]["max_position_embeddings"]
    num_types = SETTINGS[kind]["type_vocab_size"]
    shapes = {
        f"{kind}.embeddings.word_embeddings.weight": (V, D),
        f"{kind}.embeddings.position_embeddings.weight": (num_positions, D),
        f"{kind}.embeddings.token_type_embeddings.weight": (num_types, D),
    }
    for name, shape in modules.items():
        shapes[f"{name}.weight"] = shape
        shapes[f"{name}.bias"] = shape[:1]

    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}


def write_folder(
    folder: Path, kind: str, tensors: dict[str, np.ndarray], **changed_settings: Any
) -> None:
    """Writes config.json and model.safetensors."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    settings = SETTINGS[kind] | COMMON_SETTINGS | changed_settings
    (folder / "config.json").write_text(json.dumps(settings))


def make_folder(
    folder: Path, kind: str = "bert", **changed_settings: Any
) -> dict[str, np.ndarray]:
    """Writes a model of masked tokens, and returns its tensors."""
    tensors = random_tensors(kind, HEAD_SHAPES[kind])
    rng = np.random.default_rng(2)
    tensors[f"{DECODERS[kind]}.bias"] = rng.normal(size=V).astype("f4")
    write_folder(folder, kind, tensors, **changed_settings)
    return tensors
