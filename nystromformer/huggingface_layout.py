"""The names and shapes of the published Nyströmformer's tensors, beside ours.

Letters: N heads, K size of the convolution's kernel.
"""

import numpy as np

# The names of a model with a head begin with BASE, except those of the head. In the
# file of an encoder alone no name does.
BASE = "nystromformer."
WORDS = f"{BASE}embeddings.word_embeddings.weight"
POSITIONS = f"{BASE}embeddings.position_embeddings.weight"
NUM_RESERVED_POSITIONS = 2  # first rows of the published positions; no token reads them

# The tables have our names on the left and the published ones on the right.
ARRAYS = {
    "encoder.embedding.embedding": WORDS,
    "encoder.positions": POSITIONS,
    "encoder.token_types": f"{BASE}embeddings.token_type_embeddings.weight",
    "bias": "cls.predictions.bias",
}
MODULES = {
    "encoder.embedding_norm": f"{BASE}embeddings.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "pooler": "classifier.dense",
    "out": "classifier.out_proj",
}
MODULES_OF_A_BLOCK = {
    "attention.project": (
        "attention.self.query",
        "attention.self.key",
        "attention.self.value",
    ),
    "attention.attention": ("attention.self.conv",),
    "attention.out": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "mlp.expand": ("intermediate.dense",),
    "mlp.contract": ("output.dense",),
    "mlp_norm": ("output.LayerNorm",),
}
PARAMETERS = {
    "kernel": "weight",
    "conv_kernel": "weight",
    "scale": "weight",
    "bias": "bias",
}

# Some files have a tensor under a second name, on the left here, or under that alone.
COPIES = {
    "cls.predictions.decoder.weight": WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}

Tensors = dict[str, np.ndarray]  # by name


def published_names(name: str) -> list[str]:
    """The names of the tensors that make one of our arrays: three for projections."""
    if name in ARRAYS:
        return [ARRAYS[name]]
    module, _, parameter = name.rpartition(".")
    if module in MODULES:
        return [f"{MODULES[module]}.{PARAMETERS[parameter]}"]
    _, _, number, module_of_block = module.split(".", 3)  # encoder.blocks.0.mlp.expand
    return [
        f"{BASE}encoder.layer.{number}.{published_module}.{PARAMETERS[parameter]}"
        for published_module in MODULES_OF_A_BLOCK[module_of_block]
    ]


def from_published(name: str, tensors: Tensors) -> np.ndarray:
    """One of our arrays, made of the published tensors.

    PyTorch's linear layers are [out, in], ours [in, out], and queries, keys and values
    are one product here. The kernel of the convolution is [N, 1, K, 1] there and [K, N]
    here.
    """
    parts = [tensors[published_name] for published_name in published_names(name)]
    if name.endswith(".conv_kernel"):
        parts = [part[:, 0, :, 0].T for part in parts]
    elif name.endswith(".kernel"):
        parts = [part.T for part in parts]
    return np.concatenate(parts, axis=-1)


def to_published(arrays: Tensors) -> Tensors:
    """The inverse of `from_published` for all arrays, without reserved positions."""
    tensors = {}
    for name, array in arrays.items():
        names = published_names(name)
        for published_name, part in zip(
            names, np.split(array, len(names), axis=-1), strict=True
        ):
            if name.endswith(".conv_kernel"):
                tensors[published_name] = part.T[:, None, :, None]
            elif name.endswith(".kernel"):
                tensors[published_name] = part.T
            else:
                tensors[published_name] = part
    return tensors
