"""Errors of config files: a bug in a file, or a key that its config does not have."""

import traceback

# These functions of a config file or a module run while flags are parsed.
USER_FUNCTIONS = {"<module>", "get_config"}


def is_of_user_function(error: Exception) -> bool:
    """Returns whether an error was raised inside one of USER_FUNCTIONS: it is a bug."""
    frames = traceback.extract_tb(error.__traceback__)
    return not USER_FUNCTIONS.isdisjoint(frame.name for frame in frames)


def format_missing_key(error: AttributeError | KeyError) -> str:
    """Returns, in one line, what ml_collections says about a key that is not there.

    It may say so by an error that holds another one.
    """
    reason = error.args[0]
    if isinstance(reason, KeyError):
        sentences = str(reason.args[0]).splitlines()
        return f"no such key in the config: {'. '.join(sentences)}"
    return str(reason).strip().splitlines()[-1]
