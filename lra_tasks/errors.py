"""The error of this package. It imports nothing, so that everybody can catch it."""


class DataError(ValueError):
    """An error that a user can correct.

    The message is one line that says what is wrong, and what to do about it.
    """
