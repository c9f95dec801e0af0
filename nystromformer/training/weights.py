"""A model's weights in a file of their own, readable without the rest of a run.

The format is safetensors: names, dtypes and shapes, then the bytes. A flipped bit would
be read without a word, so the digest of all leaves stands in the file's metadata.
"""

import hashlib
import json
import os
from typing import Any

import jax
import numpy as np
import safetensors.numpy

from nystromformer.training.files import Folder, first_line, is_local, system_errors
from nystromformer.training.step import Weights, leaf_name


class CheckpointError(ValueError):
    """Weights or checkpoints that cannot be read or written; says what to do."""


def digest(tree: Any) -> str:
    """sha256 (hex) of the names, dtypes, shapes and bytes of all leaves."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        header = f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}"
        sha.update(header.encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves by name, as in params.encoder.positions."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {leaf_name(path): leaf for path, leaf in leaves}


def save_weights(path: Folder, weights: Weights) -> None:
    """Writes the file, whole or not at all."""
    tensors = {
        name: np.array(leaf, order="C") for name, leaf in named_leaves(weights).items()
    }
    content = safetensors.numpy.save(tensors, {"sha256": digest(weights)})
    with system_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_local(path):
            path.write_bytes(content)
            return
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def load_weights(path: Folder, shapes: Weights) -> Weights:
    """The weights of a file, on the host.

    Args:
      path: a file of `save_weights`.
      shapes: what they have to be, as `jax.eval_shape` gives it.

    Raises:
      CheckpointError: the file is damaged, or of another model.
      OSError: it cannot be read.
    """
    with system_errors(path):
        content = path.read_bytes()
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        noted = json.loads(content[8 : 8 + size])["__metadata__"]["sha256"]
    except Exception as error:  # the library's own, and what JSON and keys raise
        raise CheckpointError(f"{path} is damaged ({first_line(error)})") from error
    wanted = named_leaves(shapes)
    for name in sorted(wanted.keys() ^ tensors.keys()):
        where = "lacks" if name in wanted else "has another model's"
        raise CheckpointError(f"{path} {where} {name}")
    for name, shape in wanted.items():
        if shape.shape != tensors[name].shape or shape.dtype != tensors[name].dtype:
            raise CheckpointError(
                f"{path}: {name} is {tensors[name].dtype} {tensors[name].shape}, not "
                f"{shape.dtype} {shape.shape}"
            )
    leaves = [tensors[name] for name in wanted]
    weights = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    if digest(weights) != noted:
        raise CheckpointError(
            f"{path} is damaged: its contents do not match its digest"
        )
    return weights
