"""The folder of a report: written whole or not at all, and never among the runs."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.lab.report.runs import Run

PAGE, TEXT, FIGURES = "report.html", "report.md", "figures"
ACCURACY, RUNS = "accuracy.csv", "runs.csv"
FILES = {PAGE, TEXT, ACCURACY, RUNS}


def check_output(folder: Path, runs: list[Run]) -> None:
    """Whether a report may be written there: a new folder, or an earlier report.

    Raises:
      ConfigError: it lies in a run, is a file, or holds something else.
    """
    for run in runs:
        if folder.is_relative_to(run.workdir):
            raise ConfigError(
                f"--out={folder} lies in the run {run.workdir}; name another folder"
            )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"--out={folder} is a file; name a folder")
    for path in sorted(folder.rglob("*")):
        figure = path.parent == folder / FIGURES and path.suffix in (".png", ".svg")
        own = path.parent == folder and path.name in {*FILES, FIGURES}
        if not (figure or own):
            raise ConfigError(
                f"--out={folder} holds {path.relative_to(folder)}, which is no part of "
                "a report; name another folder"
            )


@contextlib.contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `folder` at the end.

    After an error, or a signal that ends the program, `folder` is as it was.

    Raises:
      ConfigError: nothing can be written beside `folder`.
    """
    new, old = (
        folder.with_name(f".{folder.name}.{kind}.{os.getpid()}")
        for kind in ("new", "old")
    )
    try:
        new.mkdir(parents=True)
    except OSError as error:
        message = f"--out={folder} cannot be written: {error.strerror}"
        raise ConfigError(message) from error
    try:
        yield new
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if old.exists() and not folder.exists():
            old.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
