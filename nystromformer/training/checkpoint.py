"""The checkpoints of a run, and its best weights.

`checkpoints/STEP.safetensors` holds what training goes on from,
`best/STEP.safetensors` the weights that were best on validation. A checkpoint names its
best file, which is written before it; it is whole only with that file. On restoring, a
step that is not whole is passed over for the next older one, and when none is whole
that is an error, never a fresh start.
"""

from typing import Any

import jax
import numpy as np
from absl import logging

from nystromformer.training.arrays import (
    CheckpointError,
    DamagedError,
    load_arrays,
    save_arrays,
)
from nystromformer.training.devices import is_first, largest, of_first, wait_for_all
from nystromformer.training.files import Folder, first_line, system_errors
from nystromformer.training.step import Weights

Best = tuple[int, Weights]  # the step at which the weights were the best, and these
SUFFIX = ".safetensors"


def best_file(workdir: Folder, step: int) -> Folder:
    """The file of the best weights, found at this step."""
    return workdir / "best" / f"{step}{SUFFIX}"


def steps_in(folder: Folder) -> list[int]:
    """The steps of which a folder holds a file, the newest first."""
    with system_errors(folder):
        files = [*folder.glob(f"*{SUFFIX}")] if folder.is_dir() else []
    return sorted((int(x.stem) for x in files if x.stem.isdecimal()), reverse=True)


def older_steps(workdir: Folder) -> list[Folder]:
    """The checkpoints of the layout before this, a folder each."""
    with system_errors(workdir):
        found = (workdir / "checkpoints").glob("[0-9]*")
        return [path for path in found if path.name.isdecimal() and path.is_dir()]


class Checkpoints:
    """The two newest checkpoints of one run, and their best weights.

    A damaged one is moved out of the way, to `damaged-STEP.safetensors` beside
    `checkpoints`, not deleted.
    """

    def __init__(self, workdir: Folder):
        self.workdir = workdir
        self.directory = workdir / "checkpoints"
        self.best_on_disk: int | None = None

    def _file(self, step: int) -> Folder:
        return self.directory / f"{step}{SUFFIX}"

    def save(
        self, step: int, state: Any, meta: dict[str, Any], best: Best | None = None
    ) -> None:
        """Saves a step, whole or not at all; the first process writes.

        Args:
          step: none before one that is saved; its own checkpoint is replaced.
          state: a pytree of arrays.
          meta: a JSON object.
          best: the best weights so far, on the host; None before any.
        """
        failed, again = None, False
        if is_first():
            try:
                again = step in steps_in(self.directory)
                self.save_best(best)
                noted = {**meta, "best_step": best[0] if best else None}
                save_arrays(self._file(step), jax.device_get(state), noted)
            except OSError as error:
                failed = error
        if largest(failed is not None):
            reason = f" ({first_line(failed)})" if failed else ""
            raise CheckpointError(
                f"could not save step {step} to {self.directory}{reason}; older "
                "checkpoints are intact: free some space or repair the folder, then "
                "run the same command again"
            ) from failed
        if is_first():
            self._remove(self.directory, steps_in(self.directory)[2:])
            if best and not again:  # and that of the older checkpoint
                steps = steps_in(self.workdir / "best")
                older = [found for found in steps if found < best[0]][:1]
                self._remove(self.workdir / "best", steps, best[0], *older)

    def save_best(self, best: Best | None) -> None:
        """Writes the best weights, unless this process has written or read them."""
        if is_first() and best and best[0] != self.best_on_disk:
            save_arrays(best_file(self.workdir, best[0]), best[1])
            self.best_on_disk = best[0]

    def _remove(self, folder: Folder, steps: list[int], *but: int) -> None:
        with system_errors(folder):
            for step in {*steps} - {*but}:
                (folder / f"{step}{SUFFIX}").unlink()

    def finish(self, best_step: int) -> None:
        """Deletes all but the best weights: a finished run needs nothing else."""
        if is_first():
            self._remove(self.directory, steps_in(self.directory))
            folder = self.workdir / "best"
            self._remove(folder, steps_in(folder), best_step)

    def restore(self, shapes: Any) -> tuple[Any, dict[str, Any], Best | None] | None:
        """The newest whole checkpoint, or None where there has been none.

        Args:
          shapes: a State of ShapeDtypeStructs.

        Returns:
          state, meta and best, as they were saved.

        Raises:
          CheckpointError: there are checkpoints, but none is whole, or not every
            process sees them, or they are of an earlier version.
          OSError: files of one cannot be read, so that it may be whole.
        """
        steps = steps_in(self.directory)
        newest = max(steps, default=-1)
        if largest(newest != of_first(newest)):
            raise CheckpointError(
                f"{self.directory} differs between processes: the workdir must "
                "be visible to all of them"
            )
        if not steps and older_steps(self.workdir):
            raise CheckpointError(
                f"{self.directory} holds checkpoints of an earlier version: finish the "
                f"run with that version, or delete {self.workdir} to start again"
            )
        damaged = []
        for step in steps:
            found = self._restore_step(step, shapes)
            if not (largest(found is None) or found is None):
                self._move_aside(damaged, step)
                return found
            damaged.append(step)
        if damaged:
            raise CheckpointError(
                f"no intact checkpoint in {self.directory} (damaged: "
                f"{', '.join(map(str, damaged))}); delete {self.workdir} to start again"
            )
        return None

    def _restore_step(self, step: int, shapes: Any) -> Any:
        """As `restore`; None where it is damaged."""
        try:
            state, meta = load_arrays(self._file(step), shapes)
            best = None
            if (best_step := meta.pop("best_step")) is not None:
                path = best_file(self.workdir, best_step)
                weights, _ = load_arrays(path, shapes.weights)
                best, self.best_on_disk = (best_step, weights), best_step
        except (DamagedError, FileNotFoundError) as error:
            logging.info("checkpoint %d: %s", step, first_line(error))
            return None
        return state, meta, best

    def _move_aside(self, damaged: list[int], whole: int) -> None:
        """Damaged steps go where they are no longer steps, over earlier ones there."""
        for step in damaged:
            print(
                f"checkpoint {step} in {self.directory} is damaged: resuming from step "
                f"{whole}"
            )
            if is_first():
                aside = self.workdir / f"damaged-{step}{SUFFIX}"
                with system_errors(self.directory):
                    self._file(step).replace(aside)
        wait_for_all("moved the damaged aside")


def read_best(workdir: Folder, shapes: Weights) -> Best | None:
    """The best weights of a run, finished or not; None before any. Changes nothing.

    Args:
      workdir: of a run. Finished ones of the layout before this are read, too: they
        hold the best weights within their last checkpoint.
      shapes: of its weights, as `jax.eval_shape` gives them.

    Raises:
      CheckpointError: they are damaged, or another model's.
    """
    if steps := steps_in(workdir / "best"):
        return steps[0], load_arrays(best_file(workdir, steps[0]), shapes)[0]
    if not (older := older_steps(workdir)):
        return None
    newest = max(older, key=lambda path: int(path.name))
    import orbax.checkpoint as ocp  # nothing else needs it

    try:
        found = ocp.StandardCheckpointer().restore((newest / "state").absolute())
    except Exception as error:
        raise DamagedError(f"{newest} is damaged ({first_line(error)})") from error
    leaves = []
    for path, _ in jax.tree_util.tree_leaves_with_path(shapes):
        name = f".best{jax.tree_util.keystr(path)}"
        if name not in found:
            raise CheckpointError(f"{newest} lacks {name}")
        leaves.append(np.asarray(found[name]))
    weights = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    return int(found[".best_step"]), weights
