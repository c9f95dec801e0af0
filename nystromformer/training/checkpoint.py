"""Checkpoints and best weights of a run, written by orbax; weights to give away.

Orbax restores a flipped bit as a wrong number, in silence. So a sha256 of all that is
saved is written beside it, and is compared when it is read. All processes of a run call
the same functions; the first one writes. Weights to give away are one file of
safetensors, whose sha256 stands in the config beside it.
"""

import functools
import hashlib
import json
import logging
import os
import re
import sys
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import safetensors.numpy
from etils import epath

from nystromformer.errors import CheckpointError
from nystromformer.run_files import CHECKPOINTS_FOLDER, write_bytes
from nystromformer.training.devices import (
    check_same_on_all_hosts,
    is_host_0,
    is_random_key,
)
from nystromformer.training.step import leaves_by_name
from nystromformer.validation import is_in_bucket

Tree = TypeVar("Tree")


def weights_sha256(tree: Any) -> str:
    """sha256 (hex) of the names, dtypes, shapes and bytes of all leaves."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(_to_numbers(leaf))
        name = f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}"
        sha.update(name.encode())
        sha.update(array.tobytes())
    return sha.hexdigest()


def saved_steps(workdir: epath.PathLike) -> list[int]:
    """The steps of which a run has a checkpoint, the newest first."""
    folder = epath.Path(workdir) / CHECKPOINTS_FOLDER
    return sorted(ocp.utils.checkpoint_steps(folder), reverse=True)


def save_step(workdir: epath.PathLike, step: int, state: Any, meta: Any) -> None:
    """Saves a checkpoint of arrays and a JSON object, and keeps the one before it."""
    folder = epath.Path(workdir) / CHECKPOINTS_FOLDER
    _save(folder / str(step), state, meta)
    if is_host_0():
        for old_step in saved_steps(workdir)[2:]:
            (folder / str(old_step)).rmtree()


def delete_steps(workdir: epath.PathLike) -> None:
    """Deletes all checkpoints, which only an unfinished run needs."""
    if is_host_0():
        (epath.Path(workdir) / CHECKPOINTS_FOLDER).rmtree()


def restore(
    workdir: epath.PathLike, like: Tree, max_step: int | None = None
) -> tuple[Tree, Any] | None:
    """Loads the newest checkpoint that is whole.

    Args:
      like: as in `load_weights`.
      max_step: leaves out the checkpoints after this step; None = none.

    Returns:
      Arrays and JSON object, as in `load_weights`; None if there is no checkpoint.

    Raises:
      CheckpointError: there are checkpoints, and none is whole.
    """
    steps = saved_steps(workdir)
    # Processes that see other checkpoints do not share the folder.
    check_same_on_all_hosts(checkpoints=str(steps))
    if max_step is not None:
        steps = [step for step in steps if step <= max_step]
    for index, step in enumerate(steps):
        try:
            return load_weights(
                epath.Path(workdir) / CHECKPOINTS_FOLDER / str(step), like
            )
        except CheckpointError as error:
            is_last = step == steps[-1]
            rest = "" if is_last else f"; going back to step {steps[index + 1]}"
            print(f"checkpoint {error}{rest}")
    if steps:
        raise CheckpointError(
            f"no checkpoint in {workdir} is whole and of this model: delete the folder "
            "to start again"
        )
    return None


def save_weights(folder: epath.PathLike, weights: Any, meta: Any = None) -> None:
    """Writes arrays and a JSON object to a folder, in place of what is there.

    On a disk, what is there stays until all is written. A process that is killed, and a
    disk that is full, leave the old ones or the new ones for `load_weights`. In a
    bucket, where no folder can be renamed, the old ones are deleted first.

    Raises:
      OSError: the disk is full, or refuses for another reason.
    """
    if is_in_bucket(folder):
        _save(folder, weights, meta)
        return
    _put_in_place(folder)  # what a process that was killed had written
    _save(_new_folder(folder), weights, meta)
    _put_in_place(folder)


def has_weights(folder: epath.PathLike) -> bool:
    """Whether `save_weights` has written to a folder."""
    return epath.Path(folder).exists() or _new_folder(folder).exists()


def _new_folder(folder: epath.PathLike) -> epath.Path:
    """Where new weights wait until they take the place of those in a folder.

    What is there is whole: orbax gives a folder its name when all is written.
    """
    folder = epath.Path(folder)
    return folder.with_name(f"{folder.name}.new")


def _put_in_place(folder: epath.PathLike) -> None:
    """Puts new weights, if there are any, in the place of those in a folder."""
    new_folder = _new_folder(folder)
    if is_host_0() and new_folder.exists():
        epath.Path(folder).rmtree(missing_ok=True)
        new_folder.rename(folder)


def _save(folder: epath.PathLike, weights: Any, meta: Any) -> None:
    """Writes arrays and a JSON object to a folder; what is there is deleted first."""
    weights = jax.device_get(jax.tree.map(_to_numbers, weights))
    signed_meta = {"meta": meta, "sha256": _sha256(weights, meta)}
    content = ocp.args.Composite(
        state=ocp.args.StandardSave(weights), meta=ocp.args.JsonSave(signed_meta)
    )
    _hide_further_errors()
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(_absolute(folder), args=content, force=True)
    except ValueError as error:
        # This is how tensorstore tells of a full disk.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(folder)) from error


def load_weights(folder: epath.PathLike, like: Tree) -> tuple[Tree, Any]:
    """Reads what `save_weights` wrote to a folder.

    Args:
      like: the structure, shapes and dtypes, as `jax.eval_shape` gives them.

    Returns:
      The arrays, on the host, and the JSON object.

    Raises:
      CheckpointError: they are missing, damaged, or of a different model.
    """
    new_folder = _new_folder(folder)
    if new_folder.exists():
        folder = new_folder  # whole, which the old ones may no longer be
    shapes = jax.eval_shape(lambda tree: jax.tree.map(_to_numbers, tree), like)
    arrays = jax.tree.map(lambda x: np.empty(x.shape, x.dtype), shapes)
    content = ocp.args.Composite(
        state=ocp.args.StandardRestore(arrays), meta=ocp.args.JsonRestore()
    )
    try:
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            restored = checkpointer.restore(_absolute(folder), args=content)
        weights = restored["state"]
        meta = restored["meta"]["meta"]
        has_shapes = _shapes(weights) == _shapes(shapes)
        if not has_shapes or _sha256(weights, meta) != restored["meta"]["sha256"]:
            raise ValueError("it is not what was saved")
    except Exception as error:  # orbax and json raise many kinds
        _hide_further_errors()
        raise CheckpointError(f"{folder} {_describe_fault(folder, shapes)}") from error
    return jax.tree.map(_from_numbers, weights, like), meta


@functools.cache  # once in a process
def _hide_further_errors() -> None:
    """Hides what says nothing new where weights cannot be read or written.

    Of all arrays that orbax reads or writes at once the first error is raised, and
    becomes our line. There would be tracebacks above it: orbax logs the error of a
    thread, asyncio that of each other array, for which nobody asked, and the threads of
    tensorstore find a closed loop.
    """

    def is_of_others(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "tensorstore" not in message and "_SignalingThread" not in message

    logging.getLogger("absl").addFilter(is_of_others)
    logging.getLogger("asyncio").addFilter(is_of_others)
    report_others = sys.unraisablehook

    def report(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            report_others(unraisable)

    sys.unraisablehook = report


def _describe_fault(folder: epath.PathLike, shapes: Any) -> str:
    """Says why a folder of weights could not be read, of which orbax gives codes."""
    path = _absolute(folder)
    if not path.exists():
        return "is missing"
    try:
        saved = ocp.StandardCheckpointHandler().metadata(path / "state").tree
    except Exception:  # the description of the arrays is damaged, too
        saved = shapes
    return _describe_difference(saved, shapes) or (
        "is damaged: a file in it is missing, cut short, changed or not yours to read"
    )


def _describe_difference(saved: Any, shapes: Any) -> str | None:
    """Says which array is not that of this model; None if they all are."""
    saved_arrays = leaves_by_name(saved)
    arrays = leaves_by_name(shapes)
    for name in arrays | saved_arrays:
        there = _describe_array(saved_arrays.get(name))
        here = _describe_array(arrays.get(name))
        if there != here:
            return f"is of another model: {name} is {there} there, {here} here"
    return None


def _describe_array(array: Any) -> str:
    """Names the form of an array, as in "float32 [37, 41]"."""
    if array is None:
        return "missing"
    return f"{np.dtype(array.dtype)} {list(array.shape)}"


def write_weights_file(path: epath.PathLike, weights: Any) -> None:
    """Writes arrays to a file of safetensors, by the names of `leaves_by_name`."""
    arrays = {
        name: np.array(_to_numbers(leaf), order="C")
        for name, leaf in leaves_by_name(weights).items()
    }
    write_bytes(epath.Path(path), safetensors.numpy.save(arrays))


def read_weights_file(path: epath.PathLike, like: Tree) -> Tree:
    """Reads what `write_weights_file` wrote.

    Args:
      path: the file.
      like: as in `load_weights`.

    Returns:
      The arrays, on the host.

    Raises:
      CheckpointError: it is damaged, or of a different model.
    """
    shapes = jax.eval_shape(lambda tree: jax.tree.map(_to_numbers, tree), like)
    content = epath.Path(path).read_bytes()
    try:
        arrays = safetensors.numpy.load(content)
    except Exception as error:  # safetensors raises errors of its own
        raise CheckpointError(
            f"{path} is damaged: it is cut short or changed"
        ) from error
    difference = _describe_difference(arrays, shapes)
    if difference:
        raise CheckpointError(f"{path} {difference}")
    leaves = [arrays[name] for name in leaves_by_name(shapes)]
    weights = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return jax.tree.map(_from_numbers, weights, like)


def _to_numbers(leaf: Any) -> Any:
    """A random key as its numbers, since orbax saves no keys; all else as it is."""
    return jax.random.key_data(leaf) if is_random_key(leaf) else leaf


def _from_numbers(leaf: Any, like: Any) -> Any:
    """The inverse of `_to_numbers`, for a leaf that was like another one."""
    if not is_random_key(like):
        return leaf
    # `like` may be a mere shape, of which JAX does not tell the implementation.
    impl = jax.random.key_impl(jnp.empty((), like.dtype))
    return jax.random.wrap_key_data(leaf, impl=impl)


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [np.shape(leaf) for leaf in jax.tree.leaves(tree)]


def _absolute(folder: epath.PathLike) -> epath.Path:
    """The folder as orbax wants it; an address in a bucket is one already."""
    return epath.Path(folder if is_in_bucket(folder) else os.path.abspath(folder))


def _sha256(weights: Any, meta: Any) -> str:
    return weights_sha256({json.dumps(meta, sort_keys=True): weights})
