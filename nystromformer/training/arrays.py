"""Arrays in safetensors files, which many programs can read, with a digest.

A flipped bit would otherwise be read unnoticed, so the file's metadata hold a sha256 of
all names, dtypes, shapes and bytes, besides any JSON that belongs to the arrays.
"""

import hashlib
import json
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors.numpy

from nystromformer.training.files import Folder, first_line, system_errors, write_bytes
from nystromformer.training.step import leaf_name

Tree = TypeVar("Tree")


class CheckpointError(ValueError):
    """Weights or checkpoints that cannot be read or written; says what to do."""


class DamagedError(CheckpointError):
    """A file that is not what was written."""


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


def save_arrays(path: Folder, tree: Any, meta: dict[str, Any] | None = None) -> None:
    """Writes a pytree of arrays and a JSON object, whole or not at all."""
    tensors = {k: np.array(v, order="C") for k, v in named_leaves(tree).items()}
    text = json.dumps(meta or {}, sort_keys=True)
    noted = {"meta": text, "sha256": _seal(tree, text)}
    write_bytes(path, safetensors.numpy.save(tensors, noted))


def load_arrays(path: Folder, shapes: Tree) -> tuple[Tree, dict[str, Any]]:
    """The arrays of a file, on the host, and its JSON object.

    Args:
      path: a file of `save_arrays`.
      shapes: what they have to be, as `jax.eval_shape` gives it.

    Raises:
      DamagedError: the file is not what was written.
      CheckpointError: it holds other arrays.
      OSError: it cannot be read.
    """
    with system_errors(path):
        content = path.read_bytes()
    try:
        tensors = safetensors.numpy.load(content)
        size = int.from_bytes(content[:8], "little")
        noted = json.loads(content[8 : 8 + size])["__metadata__"]
        meta, sha256 = noted["meta"], noted["sha256"]
    except Exception as error:  # the library's own, and what JSON and keys raise
        raise DamagedError(f"{path} is damaged ({first_line(error)})") from error
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
    tree = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    if _seal(tree, meta) != sha256:
        raise DamagedError(f"{path} is damaged: it does not match its digest")
    return tree, json.loads(meta)


def _seal(tree: Any, meta: str) -> str:
    return hashlib.sha256((digest(tree) + meta).encode()).hexdigest()
