"""Checkpoints by orbax, each with a digest of what it holds.

Orbax restores a flipped bit in array data without a word. So the sha256 of all leaves
is stored beside them; on restoring, a step that is not whole is passed over for the
next older one, and when none is whole that is an error, never a fresh start.
"""

import glob
import hashlib
import json
import shutil
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath

from nystromformer.training.bucket import Folder, is_local, system_errors
from nystromformer.training.errors import first_line
from nystromformer.training.processes import (
    is_first,
    largest,
    of_first,
    wait_for_all,
)


class CheckpointError(ValueError):
    """Checkpoints that cannot be read or written; the message says what to do."""


def digest(tree: Any) -> str:
    """sha256 (hex) of the names, dtypes, shapes and bytes of all leaves."""
    sha = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        header = f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}"
        sha.update(header.encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()


def checksum(state: Any, meta: dict[str, Any]) -> str:
    """sha256 (hex) of a whole checkpoint: the state's digest and the meta's JSON."""
    text = digest(state) + json.dumps(meta, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Checkpoints:
    """The checkpoints of one run: the two newest steps are kept.

    A damaged step is moved out of the way, to `damaged-STEP` beside the directory, not
    deleted. With read_only nothing is changed.

    Raises:
      CheckpointError: for a folder that orbax would take for a pattern.
    """

    def __init__(self, directory: Folder, read_only: bool = False):
        self.directory = epath.Path(directory)
        if glob.has_magic(str(self.directory.absolute())):
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be read back from a folder with "
                "one of * ? [ in its name; choose another"
            )
        self.read_only = read_only
        if not read_only:
            self._take_back_replaced()
            wait_for_all("replaced checkpoints are back")
        with system_errors(self.directory):
            self.manager = ocp.CheckpointManager(
                self.directory.absolute() if is_local(directory) else self.directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=None if read_only else 2,
                    enable_async_checkpointing=False,
                    cleanup_tmp_directories=not read_only,
                    create=not read_only,
                ),
            )

    def save(self, step: int, state: Any, meta: dict[str, Any]) -> None:
        """Saves a pytree of arrays and a JSON object as `step`, whole or not at all.

        A step that was saved before is replaced, and kept until the new one is whole;
        in a bucket, which cannot rename, the step before it is what is kept, or, where
        there is none, the new one is first saved as that.
        """
        host_state = jax.device_get(state)
        leaves = _named_leaves(host_state)
        meta = {**meta, "sha256": checksum(host_state, meta)}
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(leaves), meta=ocp.args.JsonSave(meta)
        )
        try:
            self._check_free_space(host_state)
            if step in self.manager.all_steps():
                self._make_room(step, args)
            self.manager.save(step, args=args, force=True)
        except Exception as error:
            self._take_back_replaced()
            if jax.process_count() > 1 and not isinstance(error, OSError):
                raise  # another process may be gone
            raise CheckpointError(
                f"could not save step {step} to {self.directory} "
                f"({first_line(error)}); older checkpoints are intact: free some "
                "space or mend the folder, then run the same command again"
            ) from error
        self._take_back_replaced()

    def keep_only(self, step: int) -> None:
        """Deletes all other steps."""
        with system_errors(self.directory):
            for other in self.manager.all_steps():
                if other != step:
                    self.manager.delete(other)

    def _make_room(self, step: int, args: ocp.args.Composite) -> None:
        """Moves a step aside; in a bucket, deletes it once there is another."""
        if not is_local(self.directory):
            if list(self.manager.all_steps()) == [step]:
                self.manager.save(step - 1, args=args, force=True)
            self.manager.delete(step)
            return
        if is_first():
            (self.directory / str(step)).rename(self._beside("replaced", step))
        wait_for_all("moved it aside")
        self.manager.reload()

    def _beside(self, why: str, step: int) -> epath.Path:
        """A place for a step that is no longer one."""
        return self.directory.with_name(f"{why}-{step}")

    def _take_back_replaced(self) -> None:
        """Back goes a step that was to be replaced, unless the new one is whole."""
        if not is_first() or not is_local(self.directory):
            return
        for old in self.directory.parent.glob("replaced-*"):
            new = self.directory / old.name.removeprefix("replaced-")
            if new.exists():
                old.rmtree()
            else:
                old.rename(new)

    def _check_free_space(self, state: Any) -> None:
        """Orbax on a full disk fails late and noisily: look before it starts."""
        if not is_local(self.directory):
            return
        num_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
        needed = 2 * num_bytes + 2**20
        free = shutil.disk_usage(self.directory).free
        if free < needed:
            raise OSError(f"{free:,} bytes free, {needed:,} wanted")

    def restore(self, abstract_state: Any) -> tuple[Any, dict[str, Any]] | None:
        """The newest whole checkpoint, or None where there has been none.

        Args:
          abstract_state: a pytree of ShapeDtypeStructs.

        Raises:
          CheckpointError: there are checkpoints, but none is whole, or not every
            process sees them.
          OSError: files of one cannot be read, so that it may be whole.
        """
        steps = sorted(self.manager.all_steps(), reverse=True)
        newest = max(steps, default=-1)
        if largest(newest != of_first(newest)):
            raise CheckpointError(
                f"{self.directory} is not the same for all processes: the workdir must "
                "be in a place that all of them see"
            )
        damaged = []
        for step in steps:
            with system_errors(self.directory):
                _read_all(self.directory / str(step))
            try:
                found = self._restore_step(step, abstract_state)
            except MemoryError:
                raise
            except Exception as error:
                logging.info("checkpoint %d: %s", step, first_line(error))
                found = None
            # Raises where a process is gone: a step it was needed for is not damaged.
            if largest(found is None) or found is None:
                damaged.append(step)
                continue
            state, meta = found
            for newer in damaged:
                print(
                    f"checkpoint {newer} in {self.directory} is damaged: going on "
                    f"from step {step}"
                )
                wait_for_all(f"restored step {step}")
                if not self.read_only and is_first():
                    self._move_aside(newer)
            wait_for_all("moved the damaged aside")
            if damaged:
                with system_errors(self.directory):
                    self.manager.reload()
            return state, meta
        if damaged:
            raise CheckpointError(
                f"no whole checkpoint in {self.directory} (damaged: "
                f"{', '.join(map(str, damaged))}); delete that folder to start again"
            )
        return None

    def _move_aside(self, step: int) -> None:
        """Where it is no longer a step, in place of an earlier one."""
        aside = self._beside("damaged", step)
        with system_errors(self.directory):
            aside.rmtree(missing_ok=True)
            (self.directory / str(step)).rename(aside)

    def _restore_step(self, step: int, abstract_state: Any) -> tuple[Any, Any]:
        abstract_leaves = _named_leaves(abstract_state)
        restored = self.manager.restore(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardRestore(abstract_leaves),
                meta=ocp.args.JsonRestore(),
            ),
        )
        leaves = [restored["state"][name] for name in abstract_leaves]
        for (name, wanted), leaf in zip(abstract_leaves.items(), leaves, strict=True):
            if (wanted.shape, wanted.dtype) != (leaf.shape, leaf.dtype):
                raise ValueError(f"{name} is {leaf.shape}, not {wanted.shape}")
        state = jax.tree.unflatten(jax.tree.structure(abstract_state), leaves)
        meta = restored["meta"]
        if meta.pop("sha256", None) != checksum(state, meta):
            raise ValueError("its contents do not match their digest")
        return state, meta

    def close(self) -> None:
        self.manager.close()


def _named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves by path: a plain layout that outlives changes of classes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def _read_all(folder: epath.Path) -> None:
    """Raises where a disk or a bucket refuses a file: that is no damage."""
    for path in folder.iterdir():
        if path.is_dir():
            _read_all(path)
        else:
            path.read_bytes()
