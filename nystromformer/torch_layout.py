"""Names and shapes of the published weights: PyTorch's, as transformers writes them."""

import hashlib
import re
from pathlib import Path

import numpy as np
import safetensors

WEIGHTS_FILE, TORCH_FILE = "model.safetensors", "pytorch_model.bin"
BASE = "nystromformer."  # in front of all names, but a head's and a bare encoder's
WORDS = f"{BASE}embeddings.word_embeddings.weight"
POSITIONS = f"{BASE}embeddings.position_embeddings.weight"
RESERVED = 2  # rows in front of the positions that no token reads
TIED = {  # further names of a tensor, which some files hold as well
    "cls.predictions.decoder.weight": WORDS,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
ARRAYS = {  # ours: theirs
    "encoder.embedding.embedding": WORDS,
    "encoder.positions": POSITIONS,
    "encoder.token_types": f"{BASE}embeddings.token_type_embeddings.weight",
    "bias": "cls.predictions.bias",
}
LAYER = f"{BASE}encoder.layer.i"
MODULES = {
    "encoder.embedding_norm": f"{BASE}embeddings.LayerNorm",
    "encoder.blocks.i.attention.out": f"{LAYER}.attention.output.dense",
    "encoder.blocks.i.attention_norm": f"{LAYER}.attention.output.LayerNorm",
    "encoder.blocks.i.mlp.expand": f"{LAYER}.intermediate.dense",
    "encoder.blocks.i.mlp.contract": f"{LAYER}.output.dense",
    "encoder.blocks.i.mlp_norm": f"{LAYER}.output.LayerNorm",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "pooler": "classifier.dense",
    "out": "classifier.out_proj",
}
LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}

Tensors = dict[str, np.ndarray]


class PretrainedError(ValueError):
    """A folder or model that is not in the published layout."""


def theirs_of(ours: Tensors) -> Tensors:
    """Name -> view of our array in PyTorch's shape, without reserved positions."""
    views = {}
    for name, x in ours.items():
        module, _, leaf = re.sub(r"blocks\.\d+", "blocks.i", name).rpartition(".")
        if name in ARRAYS:
            found = {ARRAYS[name]: x}
        elif module in MODULES:
            found = {f"{MODULES[module]}.{LEAVES[leaf]}": x.T}
        elif module.endswith(".attention.project"):
            parts = zip(("query", "key", "value"), np.split(x, 3, -1), strict=True)
            of = f"{LAYER}.attention.self"
            found = {f"{of}.{part}.{LEAVES[leaf]}": y.T for part, y in parts}
        elif leaf == "conv_kernel":
            found = {f"{LAYER}.attention.self.conv.weight": x.T[:, None, :, None]}
        else:
            raise PretrainedError(f"the published form has no place for {name}")
        number = re.search(r"blocks\.(\d+)", name)
        layer = f"layer.{number[1]}." if number else ""
        views |= {name.replace("layer.i.", layer): x for name, x in found.items()}
    return views


def check_tensors(theirs: Tensors, ours: Tensors, dtype: str, where: Path) -> None:
    """Raises PretrainedError for an extra, missing or mismatched tensor."""
    for name in sorted(theirs.keys() ^ ours.keys()):
        what = "lacks" if name in ours else "has, beside what the model takes,"
        raise PretrainedError(f"{where} {what} {name}")
    for name, x in theirs.items():
        length, *rest = ours[name].shape
        shape = (length + RESERVED * (name == POSITIONS), *rest)
        if (x.dtype, x.shape) != (dtype, shape):
            found = f"{x.dtype} {x.shape}, not {dtype} {shape}"
            raise PretrainedError(f"{where}: {name} is {found}")


def read_tensors(folder: Path) -> Tensors:
    """The tensors by the names that they have in a model with a head, each once."""
    path, noted = folder / WEIGHTS_FILE, None
    try:
        if path.exists():
            with safetensors.safe_open(path, "numpy") as file:
                found = {name: file.get_tensor(name) for name in [*file.keys()]}
                noted = (file.metadata() or {}).get("sha256")
        else:
            found = _read_torch(path := folder / TORCH_FILE)
    except OSError:
        raise
    except Exception as error:  # each library has its own
        reason = str(error).partition("\n")[0]
        raise PretrainedError(f"{path} cannot be read ({reason})") from error
    if noted and noted != digest_of(found):
        raise PretrainedError(f"{path} is damaged: its tensors do not match its digest")
    heads = ("cls.", "classifier.", BASE)
    tensors = {x if x.startswith(heads) else BASE + x: found[x] for x in found}
    tensors.pop(f"{BASE}embeddings.position_ids", None)  # no weight
    for name in TIED.keys() & tensors.keys():
        copy = tensors.pop(name)
        if not np.array_equal(tensors.setdefault(TIED[name], copy), copy):
            raise PretrainedError(f"{path}: {name} differs from {TIED[name]}")
    return tensors


def _read_torch(path: Path) -> Tensors:
    """The tensors of torch's file, read without running its pickle."""
    path.stat()  # OSError before torch is asked for
    import torch  # type: ignore[import-not-found]

    found = torch.load(path, map_location="cpu", weights_only=True)
    return {name: x.numpy() for name, x in found.items()}


def digest_of(tensors: Tensors) -> str:
    """sha256 (hex) of names, dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for name, x in sorted(tensors.items()):
        sha.update(f"{name}{x.dtype}{x.shape}".encode())
        sha.update(np.ascontiguousarray(x).data)
    return sha.hexdigest()
