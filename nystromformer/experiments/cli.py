"""What all commands share: flags, help, one-line errors with status 2, signals."""

import contextlib
import difflib
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from logging import CRITICAL, getLogger
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import jax
from absl import app, flags, logging
from flax.traverse_util import flatten_dict

from lra_tasks.task import DataError
from nystromformer.config import ConfigError
from nystromformer.training.checkpoint import CheckpointError
from nystromformer.training.files import first_line
from nystromformer.training.interrupt import Interrupted, catch, mute_terminal
from nystromformer.training.loop import NotFiniteError

BAD_INPUT = 2
USER_ERRORS = (ConfigError, DataError, CheckpointError, NotFiniteError, OSError)
flags.disclaim_key_flags()  # what is defined here belongs to the script that asks


def define_max_minutes(help_text: str) -> "flags.FlagHolder[float | None]":
    """--max_minutes: after how much time to save and stop."""
    flag = flags.DEFINE_float("max_minutes", None, help_text)
    flags.register_validator(
        flag,
        lambda minutes: minutes is None or 0.001 <= minutes <= 527_040,
        "must be between 0.001 and 527040, a year",
    )
    return flag


def define_folder(
    name: str, help_text: str, required: bool = False, buckets: bool = False
) -> "flags.FlagHolder[str | None]":
    """A flag such as --workdir: a folder of this machine or, if allowed, a bucket's."""
    flag = flags.DEFINE_string(name, None, help_text, required=required)

    def check(folder: str | None) -> bool:
        if folder == "":  # as of an unset variable
            raise flags.ValidationError("is empty: name a folder")
        if folder and "://" in folder and not buckets:
            raise flags.ValidationError("must be a folder; mount a bucket to use it")
        return True

    flags.register_validator(flag, check)
    return flag


def run(main: Callable[..., None], arguments: str | None = None) -> None:
    """Parses the flags, runs a command and ends the process.

    Errors that a user can correct become one line on stderr and exit status 2. A signal
    or a time limit ends with 128 + its number. Anything else is a bug and shows its
    traceback.

    Args:
      main: the command.
      arguments: the name of the positional arguments, as in "RUNS". At least one is
        required, and main gets the list. None: there are no positional arguments.
    """
    catch(_leave)
    sys.unraisablehook = _leave_from_a_destructor
    guarded = functools.partial(_guarded, main, arguments)
    app.run(guarded, flags_parser=_parse_flags)


def _guarded(
    main: Callable[..., None], arguments: str | None, argv: Sequence[str]
) -> None:
    logging.set_verbosity(logging.WARNING)
    for library in ("gcsfs", "fsspec"):  # what they raise they log as well
        getLogger(library).setLevel(CRITICAL)
    words = argv[1:]
    if words and not arguments:
        _fail(f"unexpected argument {words[0]!r}; options start with --")
    if arguments and not words:
        _fail(f"no {arguments} given; see --help")
    try:
        main(words) if arguments else main()
        sys.stdout.flush()
    except BrokenPipeError:  # of `… | head`
        mute_terminal()
        sys.exit(128 + signal.SIGHUP)
    except Interrupted as stopped:
        print(f"{stopped}; saved. Run the same command again to resume.")
        sys.exit(128 + stopped.signum)
    except USER_ERRORS as error:
        _fail(one_line(error))
    except Exception:
        _check_devices()
        raise


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses flags and returns the other words; exits on --help and on errors."""
    asked = {"--help", "-help", "-h"} & {*argv}
    given = re.search(r"\0--config[=\0]([^\0]*)", "\0".join(argv))
    config = given[1] if given else ""
    file = Path(config.partition(":")[0])
    if config and not file.is_file():
        _fail(f"there is no config file {file}")
    sys.path.append(str(file.parent.resolve()))  # it may import modules beside it
    words = []
    try:
        words = flags.FLAGS([word for word in argv if word not in asked])
    except flags.Error as error:
        missing = re.search("Flag (--.*) must have a value other", str(error))
        if not asked:
            _fail(f"{missing[1]} is missing" if missing else one_line(error))
    except Exception as error:  # a config is a program, and may raise anything
        _fail(_config_error(error, config, argv))
    made = flags.FLAGS["config"].value if config and not asked else ""
    if not isinstance(made, str) and not hasattr(made, "to_dict"):
        _fail(f"{file}: get_config must return an ml_collections.ConfigDict")
    if asked:
        _print_help()
        sys.exit(0)
    return words


def _print_help() -> None:
    """The command's docstring, its flags, and the keys of the config that is given."""
    values: Any = flags.FLAGS
    print(sys.modules["__main__"].__doc__, values.main_module_help(), sep="\n")
    config: Any = values["config"].value if "config" in values else None
    if hasattr(config, "to_dict"):
        print("\nconfig:")
        for key, value in flatten_dict(config.to_dict(), sep=".").items():
            print(f"  --config.{key}={'' if value is None else value}")


def _config_error(error: Exception, given: str, argv: Sequence[str]) -> str:
    """One line about an error in a config file, or an unknown key."""
    file = Path(given.partition(":")[0])
    trace = "".join(traceback.format_exception(error))
    lines = re.findall(rf'File ".*{re.escape(file.name)}", line (\d+)', trace)
    said = f"{type(error).__name__}: {error}"
    if "has no attribute 'get_config'" in said:
        return f"{file} has no function get_config"
    if lines and not isinstance(error, (ValueError, OSError)):
        return f"{file}, line {lines[-1]}: {' '.join(said.split())}"
    if isinstance(error, AttributeError | KeyError):
        config: Any = flags.FLAGS["config"].parser.parse(given)
        known = flatten_dict(config.to_dict(), sep=".")
        for key in re.findall(r"--(?:no)?config\.([\w.]+)", " ".join(argv)):
            if key not in known:
                near = " or ".join(difflib.get_close_matches(key, known))
                hint = f"did you mean {near}?" if near else "--help lists them"
                return f"the config has no key {key}; {hint}"
    return one_line(error)


def _check_devices() -> None:
    """Exits with one line if JAX has no device, whatever else has failed."""
    try:
        jax.devices()
    except Exception as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        _fail(
            f"JAX finds no device where JAX_PLATFORMS={wanted}: unset it, or install "
            f"jax for that ({first_line(error)})"
        )


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    """Exits at once: outside the training loop there is nothing to save."""
    with contextlib.suppress(OSError):  # of a terminal that is closed
        print(Interrupted(signum), file=sys.stderr)
    if signum == signal.SIGHUP:
        mute_terminal()
    sys.exit(128 + signum)


def _leave_from_a_destructor(unraisable: "sys.UnraisableHookArgs") -> None:
    """Exits despite Python, which ignores exceptions in destructors."""
    if isinstance(unraisable.exc_value, SystemExit):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(unraisable.exc_value.code or 0))
    sys.__unraisablehook__(unraisable)


def one_line(error: BaseException) -> str:
    """The whole message of an error as one line."""
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(map(str, filter(None, (error.filename, error.strerror))))
    text = str(error)
    if "Traceback" in text:  # an error in a config file, as ml_collections wraps it
        text = re.sub(r"^\w+: ", "", text.strip().splitlines()[-1])
    return " ".join(text.split())


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(BAD_INPUT)
