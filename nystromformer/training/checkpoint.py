"""Checkpoints by orbax, each with a digest of what it holds, and the best weights.

Orbax restores a flipped bit in array data without a word. So the sha256 of all leaves
is stored beside them; on restoring, a step that is not whole is passed over for the
next older one, and when none is whole that is an error, never a fresh start.

`checkpoints/STEP` holds what training goes on from, `best/STEP.safetensors` the weights
that were best on validation. A checkpoint names its best file, which is written before
it; it is whole only with that file.
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

from nystromformer.training.devices import is_first, largest, of_first, wait_for_all
from nystromformer.training.files import Folder, first_line, is_local, system_errors
from nystromformer.training.step import Weights
from nystromformer.training.weights import (
    CheckpointError,
    digest,
    load_weights,
    save_weights,
)

LAYOUT = 2  # of State; earlier ones hold the best weights within


def checksum(state: Any, meta: dict[str, Any]) -> str:
    """sha256 (hex) of a whole checkpoint: the state's digest and the meta's JSON."""
    text = digest(state) + json.dumps(meta, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def best_file(workdir: Folder, step: int) -> Folder:
    """Where the best weights lie that were found at this step."""
    return workdir / "best" / f"{step}.safetensors"


def read_best(workdir: Folder, shapes: Weights) -> tuple[int, Weights] | None:
    """The best weights of a run, finished or not, and their step; None before any.

    Changes nothing. Reads finished runs of the layout before this one, too: they hold
    the best weights within their last checkpoint.

    Args:
      workdir: of a run.
      shapes: of its weights, as `jax.eval_shape` gives them.

    Raises:
      CheckpointError: they are damaged, or another model's.
    """
    with system_errors(workdir):
        steps = [int(file.stem) for file in (workdir / "best").glob("*.safetensors")]
        older = (workdir / "checkpoints").is_dir()
    if steps:
        return max(steps), load_weights(best_file(workdir, max(steps)), shapes)
    return _read_older_best(workdir, shapes) if older else None


def _read_older_best(workdir: Folder, shapes: Weights) -> tuple[int, Weights] | None:
    directory = epath.Path(workdir / "checkpoints").absolute()
    options = ocp.CheckpointManagerOptions(create=False)
    with ocp.CheckpointManager(directory, options=options) as manager:
        step = manager.latest_step()
        if step is None:
            return None
        args = ocp.args.Composite(state=ocp.args.StandardRestore())
        try:
            found = manager.restore(step, args=args)["state"]
        except Exception as error:
            reason = first_line(error)
            raise CheckpointError(f"{directory} is damaged ({reason})") from error
    best = {f".best{name}": shape for name, shape in _named_leaves(shapes).items()}
    if not best.keys() <= found.keys():
        return None  # of this layout, before its first validation, or another model's
    leaves = [np.asarray(found[name]) for name in best]
    weights = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return int(found[".best_step"]), weights


class Checkpoints:
    """The checkpoints of one run: the two newest steps, and their best weights.

    A damaged step is moved out of the way, to `damaged-STEP` beside `checkpoints`, not
    deleted.

    Raises:
      CheckpointError: for a folder that orbax would take for a pattern.
    """

    def __init__(self, workdir: Folder):
        self.workdir = workdir
        self.best_on_disk: int | None = None
        self.directory = epath.Path(workdir / "checkpoints")
        if glob.has_magic(str(self.directory.absolute())):
            raise CheckpointError(
                f"{self.directory}: checkpoints cannot be read back from a folder with "
                "one of * ? [ in its name; choose another"
            )
        with system_errors(self.directory):
            self.manager = ocp.CheckpointManager(
                self.directory.absolute() if is_local(workdir) else self.directory,
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=2,
                    enable_async_checkpointing=False,
                    cleanup_tmp_directories=True,
                ),
            )

    def save(
        self,
        step: int,
        state: Any,
        meta: dict[str, Any],
        best: tuple[int, Weights] | None = None,
    ) -> None:
        """Saves a new step, whole or not at all.

        Args:
          step: a later one than all saved before.
          state: a pytree of arrays.
          meta: a JSON object.
          best: the step of the best weights and these, on the host; None = none yet.
        """
        host_state = jax.device_get(state)
        meta = {**meta, "layout": LAYOUT, "best_step": best[0] if best else None}
        try:
            self._check_free_space(host_state)
            self._save_best(best)
            self.manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(_named_leaves(host_state)),
                    meta=ocp.args.JsonSave(
                        {**meta, "sha256": checksum(host_state, meta)}
                    ),
                ),
                force=True,
            )
        except Exception as error:
            if jax.process_count() > 1 and not isinstance(error, OSError):
                raise  # another process may be gone
            raise CheckpointError(
                f"could not save step {step} to {self.directory} "
                f"({first_line(error)}); older checkpoints are intact: free some "
                "space or mend the folder, then run the same command again"
            ) from error
        if best and is_first():
            self._remove_other_best(best[0])

    def _save_best(self, best: tuple[int, Weights] | None) -> None:
        """Writes the file, unless this process has, or has read it."""
        if best and best[0] != self.best_on_disk and is_first():
            save_weights(best_file(self.workdir, best[0]), best[1])
            self.best_on_disk = best[0]

    def finish(self, best: tuple[int, Weights]) -> None:
        """Leaves the best weights alone: a finished run needs nothing else."""
        self._save_best(best)
        with system_errors(self.workdir):
            for step in self.manager.all_steps():
                self.manager.delete(step)
            if is_first():
                for path in (self.workdir / "best").glob("*.safetensors"):
                    if path != best_file(self.workdir, best[0]):
                        path.unlink()

    def _remove_other_best(self, step: int) -> None:
        """Keeps the file of this step and the one before, an older checkpoint's."""
        with system_errors(self.workdir):
            steps = [int(f.stem) for f in (self.workdir / "best").glob("*.safetensors")]
            older = sorted(found for found in steps if found < step)
            for other in {*steps} - {step, *older[-1:]}:
                best_file(self.workdir, other).unlink()

    def _check_free_space(self, state: Any) -> None:
        """Orbax on a full disk fails late and noisily: look before it starts."""
        if not is_local(self.directory):
            return
        num_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(state))
        needed = 2 * num_bytes + 2**20
        free = shutil.disk_usage(self.directory).free
        if free < needed:
            raise OSError(f"{free:,} bytes free, {needed:,} wanted")

    def restore(
        self, abstract_state: Any
    ) -> tuple[Any, dict[str, Any], tuple[int, Weights] | None] | None:
        """The newest whole checkpoint, or None where there has been none.

        Args:
          abstract_state: a State of ShapeDtypeStructs.

        Returns:
          state, meta and best, as they were saved.

        Raises:
          CheckpointError: there are checkpoints, but none is whole, or not every
            process sees them, or they are of an earlier version.
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
            if not (largest(found is None) or found is None):
                self._move_aside(damaged, step)
                return found
            damaged.append(step)
        if damaged:
            raise CheckpointError(
                f"no whole checkpoint in {self.directory} (damaged, or of an earlier "
                f"version: {', '.join(map(str, damaged))}); delete {self.workdir} to "
                "start again"
            )
        return None

    def _move_aside(self, damaged: list[int], whole: int) -> None:
        """Damaged steps go where they are no longer steps, over earlier ones there."""
        for step in damaged:
            print(
                f"checkpoint {step} in {self.directory} is damaged: going on from step "
                f"{whole}"
            )
            wait_for_all(f"restored step {whole}")
            if is_first():
                aside = self.directory.with_name(f"damaged-{step}")
                with system_errors(self.directory):
                    aside.rmtree(missing_ok=True)
                    (self.directory / str(step)).rename(aside)
        wait_for_all("moved the damaged aside")
        if damaged:
            with system_errors(self.directory):
                self.manager.reload()

    def _restore_step(self, step: int, abstract_state: Any) -> Any:
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
        best = None
        if (best_step := meta["best_step"]) is not None:
            path = best_file(self.workdir, best_step)
            if not path.exists():
                raise ValueError(f"there is no {path}")
            best = best_step, load_weights(path, abstract_state.weights)
            self.best_on_disk = best_step
        return state, meta, best

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
