"""What every command shares: flags, help, one-line errors with status 2, signals."""

import contextlib
import difflib
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

import fsspec
import jax
from absl import app, flags, logging
from etils import epath

from lra_tasks.task import DataError
from nystromformer.config import ConfigError
from nystromformer.training.arrays import CheckpointError
from nystromformer.training.files import Folder, first_line
from nystromformer.training.interrupt import Interrupted, catch, mute_terminal
from nystromformer.training.loop import NotFiniteError

BAD_INPUT = 2
A_YEAR = 366 * 24 * 60.0  # in minutes
USER_ERRORS = (ConfigError, DataError, CheckpointError, NotFiniteError, OSError)


def define_max_minutes(help_text: str) -> "flags.FlagHolder[float | None]":
    """--max_minutes: after how much time to save and stop."""
    flag = flags.DEFINE_float("max_minutes", None, help_text)
    flags.register_validator(
        flag,
        lambda minutes: minutes is None or 0.001 <= minutes <= A_YEAR,
        f"must be between 0.001 and {A_YEAR:.0f}",
    )
    return flag


def define_workdir(
    help_text: str, buckets: bool = False
) -> "flags.FlagHolder[str | None]":
    """--workdir: a folder that this machine sees, or, with buckets, in one of these."""
    flag = flags.DEFINE_string("workdir", None, help_text)
    flags.register_validator(flag, lambda name: name != "", "is empty: name a folder")
    flags.register_validator(
        flag,
        lambda name: not name or "://" not in name or buckets,
        "must be a folder; mount a bucket to use it",
    )
    return flag


def folder(flag: "flags.FlagHolder[str | None]") -> Folder:
    """What --workdir names, there or not.

    Raises:
      ConfigError: a bucket that cannot be opened from here.
    """
    name = str(flag.value)
    if "://" not in name:
        return Path(name).expanduser()
    match = re.fullmatch(r"(gs://[^/]+)/.+", name)
    if not match:
        raise ConfigError(f"--workdir={name} is neither a folder nor gs://BUCKET/RUN")
    try:
        # Where credentials are refused, exists() would try for half a minute.
        files: Any = fsspec.filesystem("gs", finalize_on_close=True)  # as epath's
        files.credentials.maybe_refresh()
        found = epath.Path(match[1]).exists()
    except ImportError as error:
        raise ConfigError(
            f"--workdir={name}: `pip install gcsfs` first, which opens buckets"
        ) from error
    except Exception as error:  # each library of a cloud has its own
        raise ConfigError(f"--workdir={name}: {first_line(error)}") from error
    if not found:
        raise ConfigError(
            f"--workdir={name}: there is no {match[1]}, or no permission to look at it "
            "(storage.buckets.get)"
        )
    return epath.Path(name)


def run(main: Callable[..., None], arguments: str | None = None) -> NoReturn:
    """Parses the flags and runs a command.

    Errors that a person can mend become one line on stderr and exit status 2; a signal
    or a time limit ends with 128 + its number. Anything else is a bug and shows its
    traceback.

    Args:
      main: the command.
      arguments: what the words that are no flags name, as in "RUNS"; there must be at
        least one, and main gets the list of them. None: there must be none.
    """
    catch(_leave)
    sys.unraisablehook = _leave_from_a_destructor

    def guarded(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        # What orbax and gcsfs raise they log as well.
        for name in ("fsspec", "gcsfs"):
            getLogger(name).setLevel(CRITICAL)
        logging.get_absl_handler().addFilter(lambda record: not record.exc_info)
        words = argv[1:]
        if words and not arguments:
            _fail(f"unexpected argument {words[0]!r}; options start with --")
        if arguments and not words:
            _fail(f"no {arguments} given; --help says what they are")
        try:
            main(words) if arguments else main()
            sys.stdout.flush()
        except BrokenPipeError:  # of `… | head`
            mute_terminal()
            sys.exit(128 + signal.SIGHUP)
        except Interrupted as stopped:
            print(f"{stopped}; saved. The same command again goes on from there.")
            sys.exit(128 + stopped.signum)
        except USER_ERRORS as error:
            _fail(one_line(error))
        except Exception:
            _check_devices()
            raise

    app.run(guarded, flags_parser=_parse_flags)
    raise AssertionError("app.run returned")


def _parse_flags(argv: list[str]) -> list[str]:
    asked = {"--help", "-help", "-h"} & {*argv}
    given = _config_of(argv)
    file = Path(given.partition(":")[0])
    if given and not file.is_file():
        _fail(f"there is no config file {file}")
    sys.path.append(str(file.parent.resolve()))  # it may import modules beside it
    words = []
    try:
        words = flags.FLAGS([word for word in argv if word not in asked])
    except flags.Error as error:
        if not asked:
            _fail(one_line(error))
    except Exception as error:  # a config is a program, and may raise anything
        _fail(_config_error(error, given, argv))
    if asked:
        _print_help()
        sys.exit(0)
    return words


def _config_of(argv: Sequence[str]) -> str:
    """What --config names, as in FILE.py:nystrom; "" where nothing does."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.startswith("--config="):
            return word.removeprefix("--config=")
        if word == "--config":
            return following
    return ""


def _print_help() -> None:
    """The command's docstring, its flags, and the keys of the config that is given."""
    values: Any = flags.FLAGS
    for module, found in values.flags_by_module_dict().items():
        if module.startswith(__package__):
            for flag in found:
                values.register_key_flag_for_module(sys.argv[0], flag)
    print(sys.modules["__main__"].__doc__, values.main_module_help(), sep="\n")
    config: Any = values["config"].value if "config" in values else None
    if hasattr(config, "to_dict"):
        print("\nconfig:")
        for key, value in _dotted(config.to_dict()).items():
            print(f"  --config.{key}={'' if value is None else value}")
    elif "config" in values:
        print("\n--help beside --config=FILE.py lists the config's keys and values.")


def _dotted(groups: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values by their keys, as in train.num_steps."""
    found = {}
    for name, value in groups.items():
        inner = isinstance(value, dict)
        path = f"{prefix}{name}"
        found |= _dotted(value, f"{path}.") if inner else {path: value}
    return found


def _config_error(error: Exception, given: str, argv: Sequence[str]) -> str:
    """What is wrong with a config file, or with a key that it does not have."""
    name = given.partition(":")[0]
    trace = "".join(traceback.format_exception(error))
    lines = re.findall(rf'File ".*{re.escape(Path(name).name)}", line (\d+)', trace)
    said = f"{type(error).__name__}: {error}"
    if "has no attribute 'get_config'" in said:
        return f"{name} has no function get_config"
    if isinstance(error, (ValueError, OSError)):
        return one_line(error)
    if lines:
        return f"{name}, line {lines[-1]}: {' '.join(said.split())}"
    config: Any = flags.FLAGS["config"].parser.parse(given)
    known = _dotted(config.to_dict())
    for key in re.findall(r"--(?:no)?config\.([\w.]+)", " ".join(argv)):
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else "--help lists them"
            return f"the config has no key {key}; {hint}"
    return one_line(error)


def _check_devices() -> None:
    """Leaves with one line where JAX has no device: no error then is another's."""
    try:
        jax.devices()
    except Exception as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        _fail(
            f"JAX finds no device where JAX_PLATFORMS={wanted}: unset it, or install "
            f"jax for that ({first_line(error)})"
        )


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    """Before and after the training loop, which saves first, nothing is half-done."""
    with contextlib.suppress(OSError):  # of a terminal that is closed
        print(Interrupted(signum), file=sys.stderr)
    if signum == signal.SIGHUP:
        mute_terminal()
    sys.exit(128 + signum)


def _leave_from_a_destructor(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python ignores what is raised there: an exit must not be."""
    if isinstance(unraisable.exc_value, SystemExit):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(unraisable.exc_value.code or 0))
    sys.__unraisablehook__(unraisable)


def one_line(error: BaseException) -> str:
    """An error that a person can mend, whole, as one line."""
    if isinstance(error, OSError) and error.strerror:
        return (
            f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        )
    text = str(error)
    if "Traceback" in text:  # an error in a config file, as ml_collections wraps it
        text = re.sub(r"^\w+: ", "", text.strip().splitlines()[-1])
    return " ".join(text.split())


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(BAD_INPUT)
