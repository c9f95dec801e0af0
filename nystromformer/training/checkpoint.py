"""Checkpoints and best weights of a run, written by orbax.

Orbax restores a flipped bit as a wrong number, in silence. So a sha256 of all that was
saved lies beside it, and is compared when it is read. All processes of a run call the
same functions; the first one writes.
"""

import hashlib
import json
import os
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from nystromformer.errors import CheckpointError
from nystromformer.training.devices import check_same_on_all_hosts, is_host_0

FOLDER = "checkpoints"
Tree = TypeVar("Tree")


def weights_sha256(tree: Any) -> str:
    """sha256 (hex) of the names, dtypes, shapes and bytes of all leaves."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        name = f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}"
        sha.update(name.encode() + array.tobytes())
    return sha.hexdigest()


def saved_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of which a run has a checkpoint, the newest first."""
    folder = epath.Path(workdir) / FOLDER
    return sorted(ocp.utils.checkpoint_steps(folder), reverse=True)


def save_step(workdir: epath.PathLike, step: int, state: Any, meta: Any) -> None:
    """Saves a checkpoint of arrays and a JSON object, and keeps the one before it."""
    folder = epath.Path(workdir) / FOLDER
    save_weights(folder / str(step), state, meta)
    for old in saved_steps(workdir)[2:] if is_host_0() else ():
        (folder / str(old)).rmtree()


def restore(workdir: epath.PathLike, like: Tree) -> tuple[Tree, Any] | None:
    """The newest whole checkpoint, as of `load_weights`; None if there are none.

    CheckpointError if there are checkpoints, and none is whole.
    """
    steps = saved_steps(workdir)
    check_same_on_all_hosts(checkpoints=str(steps))  # else they do not share the folder
    for step in steps:
        try:
            return load_weights(epath.Path(workdir) / FOLDER / str(step), like)
        except CheckpointError as error:
            print(f"checkpoint {error}")
    if steps:
        none = f"no checkpoint in {workdir} is whole and of this model"
        raise CheckpointError(f"{none}: delete the folder to start again")
    return None


def save_weights(folder: epath.PathLike, weights: Any, meta: Any = None) -> None:
    """Writes arrays and a JSON object to a folder, in place of what is there."""
    weights = jax.device_get(weights)
    noted = ocp.args.JsonSave({"meta": meta, "sha256": _sha256(weights, meta)})
    content = ocp.args.Composite(state=ocp.args.StandardSave(weights), meta=noted)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(_absolute(folder), args=content, force=True)


def load_weights(folder: epath.PathLike, like: Tree) -> tuple[Tree, Any]:
    """Arrays, on the host, and the JSON object that `save_weights` wrote to a folder.

    `like` has the structure, shapes and dtypes, as `jax.eval_shape` gives them.
    CheckpointError if they are missing, damaged, or of another model.
    """
    arrays = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    state, noted = ocp.args.StandardRestore(arrays), ocp.args.JsonRestore()
    content = ocp.args.Composite(state=state, meta=noted)
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            found = checkpointer.restore(_absolute(folder), args=content)
        weights, meta = found["state"], found["meta"]["meta"]
        shapes = [[*map(np.shape, jax.tree.leaves(x))] for x in (weights, like)]
        if shapes[0] != shapes[1] or _sha256(weights, meta) != found["meta"]["sha256"]:
            raise ValueError("it is not what was saved")
    except Exception as error:  # json's as well
        why = f"missing, damaged, or of another model ({error!r:.120})"
        raise CheckpointError(f"{folder} is {why}") from error
    return weights, meta


def _absolute(folder: epath.PathLike) -> epath.Path:
    return epath.Path(folder if "://" in str(folder) else os.path.abspath(folder))


def _sha256(weights: Any, meta: Any) -> str:
    return weights_sha256({json.dumps(meta, sort_keys=True): weights})
