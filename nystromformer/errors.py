"""Errors that a user can mend. Their messages say what is wrong and what to do.

This module imports nothing of the project, so that the command line and the report
know these classes without importing a model.
"""


class ConfigError(ValueError):
    """A configuration that cannot run."""


class PretrainedError(ValueError):
    """Published weights, or a model, that do not have the published layout."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read."""


class NotFiniteError(ValueError):
    """A loss or gradient that became NaN or infinite; the message names the culprit."""
