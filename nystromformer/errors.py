"""Errors that a user can mend, and the stop by a signal.

The messages say what is wrong and what to do.

This module imports nothing of the project, so that the command line and the report
know these classes without importing a model.
"""

import signal


class ConfigError(ValueError):
    """A configuration that cannot run."""


class PretrainedError(ValueError):
    """Published weights, or a model, that do not have the published layout."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


class NotFiniteError(ValueError):
    """A loss or gradient that became NaN or infinite; the message names the culprit."""


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop by `signum`, and has saved its state."""

    def __init__(self, signum: int, step: int | None = None):
        is_at_limit = signum == signal.SIGALRM
        name = "its time limit" if is_at_limit else signal.Signals(signum).name
        at_step = "" if step is None else f" at step {step}"
        super().__init__(f"stopped by {name}{at_step}")
        self.signum = signum
