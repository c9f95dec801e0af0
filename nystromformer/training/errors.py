"""Errors of libraries, for the one line that a person reads."""


def first_line(error: BaseException) -> str:
    """The first line of what it says, of at most 200 characters, or else its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
