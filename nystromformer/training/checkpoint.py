"""Checkpoints and best weights of a run, written by orbax.

Orbax restores a flipped bit as a wrong number, in silence. So a sha256 of all that was
saved lies beside it, and is compared when it is read. All processes of a run call the
same functions; the first one writes.
"""

import hashlib
import json
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from nystromformer.training.devices import all_hosts_max, is_host_0

Tree = TypeVar("Tree")


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written; the message says what to do."""


def weights_sha256(tree: Any) -> str:
    """sha256 (hex) of the names, dtypes, shapes and bytes of all leaves."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        header = f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}"
        sha.update(header.encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def saved_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of which a run has a checkpoint, the newest first."""
    folder = epath.Path(workdir) / "checkpoints"
    return sorted(ocp.utils.checkpoint_steps(folder), reverse=True)


class Checkpoints:
    """The two newest checkpoints of a run, in `workdir/checkpoints`."""

    def __init__(self, workdir: epath.PathLike):
        self.workdir = _absolute(workdir)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, cleanup_tmp_directories=True
        )
        folder = self.workdir / "checkpoints"
        self.manager = ocp.CheckpointManager(folder, options=options)

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Copies arrays and a JSON object, and writes them while training goes on."""
        self.wait()
        self.manager.save(step, args=_to_save(state, meta), force=True)

    def wait(self) -> None:
        """Returns when all steps are on disk; CheckpointError if one cannot be."""
        try:
            self.manager.wait_until_finished()
        except Exception as error:  # orbax and tensorstore raise many types
            raise CheckpointError(
                f"cannot save to {self.workdir} ({_first_line(error)}): free some "
                "space, then run the same command again, which resumes"
            ) from error

    def restore(self, like: Tree) -> tuple[Tree, dict[str, Any]] | None:
        """The newest whole step, on the host, and its JSON; None if there are no steps.

        Deletes newer ones, which are damaged. `like` has the structure, shapes and
        dtypes, as `jax.eval_shape` gives them.

        Raises:
          CheckpointError: there are steps, and none is whole.
        """
        damaged: dict[int, str] = {}
        for step in saved_steps(self.workdir):
            found, damaged[step] = None, "another process cannot read it"
            try:
                found = _restore(self.manager, step, like)
            except Exception as error:  # json's as well
                damaged[step] = _first_line(error)
            if not all_hosts_max(found is None):
                del damaged[step]
                for newer in damaged:
                    print(f"checkpoint {newer} is damaged: going on from step {step}")
                    self.manager.delete(newer)
                return found
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.workdir} is whole and of this model "
                f"({'; '.join(damaged.values())}): delete the folder to start again"
            )
        return None

    def close(self, delete: bool = False) -> None:
        """Waits for the steps that are being written; with `delete`, deletes all."""
        self.manager.close()
        if delete and is_host_0():
            (self.workdir / "checkpoints").rmtree()


def save_weights(folder: epath.PathLike, weights: Any) -> None:
    """Writes weights to a folder of their own, in place of what is there."""
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        checkpointer.save(_absolute(folder), args=_to_save(weights, {}), force=True)


def load_weights(folder: epath.PathLike, like: Tree) -> Tree:
    """The weights in a folder of `save_weights`, on the host; `like` as in `restore`.

    Raises:
      CheckpointError: they are missing, damaged, or of another model.
    """
    path = _absolute(folder)
    if not path.exists():
        raise CheckpointError(f"there are no weights in {path}")
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            return _restore(checkpointer, path, like)[0]
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged, or of another model ({_first_line(error)}): copy it "
            "again, or train again"
        ) from error


def _absolute(folder: epath.PathLike) -> epath.Path:
    path = epath.Path(folder)
    return path if "://" in str(path) else path.resolve()


def _to_save(state: Any, meta: dict[str, Any]) -> ocp.args.Composite:
    state = jax.device_get(state)  # what the next steps do not change
    noted = ocp.args.JsonSave({"meta": meta, "sha256": _sha256(state, meta)})
    return ocp.args.Composite(state=ocp.args.StandardSave(state), meta=noted)


def _restore(reader: Any, where: Any, like: Any) -> tuple[Any, dict[str, Any]]:
    arrays = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), like)
    state, meta = ocp.args.StandardRestore(arrays), ocp.args.JsonRestore()
    found = reader.restore(where, args=ocp.args.Composite(state=state, meta=meta))
    state, noted = found["state"], found["meta"]
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(like), strict=True)
    if any(array.shape != wanted.shape for array, wanted in pairs):
        raise ValueError("arrays of other shapes")
    if _sha256(state, noted["meta"]) != noted["sha256"]:
        raise ValueError("it is not what was saved")
    return state, noted["meta"]


def _sha256(state: Any, meta: dict[str, Any]) -> str:
    text = weights_sha256(state) + json.dumps(meta, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
