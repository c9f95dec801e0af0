"""The process of a command: its flags, signals, errors in one line, and the cache."""

import contextlib
import grp
import os
import pwd
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from absl import app, flags, logging

from lra_tasks.errors import DataError
from lra_tasks.paths import local_path
from nystromformer.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    NotFiniteError,
)
from nystromformer.experiments.plugins import absolute_names, load_modules
from nystromformer.experiments.xla_flags import turn_off_cpu_fusions

# Clusters send SIGUSR2 when the time is nearly up. SIGALRM is our own time limit.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGALRM)
CACHE_FOLDER = "~/.cache/nystromformer"
MAX_CACHE_BYTES = 2**30
# A user can correct these errors; any other is a bug and shows its traceback.
USER_ERRORS = (ConfigError, DataError, CheckpointError, NotFiniteError, OSError)
# --config.group.key=value and its other forms: negation, key, value.
CHANGE = re.compile(r"--?(no)?config\.([^=]+)(?:=(.*))?", re.DOTALL)
# A word behind a change that is its value: a negative number, or anything but a flag.
VALUE = re.compile(r"-\.?\d|[^-]|$")
# What absl says of a required flag.
MISSING_FLAG = re.compile(r"Flag --(\w+) must have a value other than None\.")
flags.disclaim_key_flags()  # --help lists the flags below with the script's own


def run(
    main: Callable[..., None],
    arguments: str | None = None,
    takes_changes: bool = False,
) -> None:
    """Parses the flags, imports the modules of --load and runs a command.

    It ends the process. The exit status is 2 for an error that the user can correct,
    and 128 plus the number of the signal for a run that a signal has stopped.

    Args:
      main: the command.
      arguments: the name of its positional arguments in messages, as in "RUNS"; `main`
        gets them as a list. None for a command that takes none.
      takes_changes: whether it takes --config.group.key=value; `main` gets these
        changes as a dict, as `take_changes` returns it.
    """
    _replace_unknown_letters()
    _name_user()
    # A module of --load may make JAX start XLA, which reads its flags only once.
    turn_off_cpu_fusions()
    flags.DEFINE_multi_string("load", [], "module, or path of its file, to import")
    command_line = _read_flag_files(sys.argv)
    main_arguments: list[Any] = []
    if takes_changes:
        command_line, changes = take_changes(command_line)
        main_arguments.append(changes)

    def guarded_main(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        words = argv[1:]
        if words and not arguments:
            fail(f"expected no arguments, got {' '.join(words)!r}")
        if arguments and not words:
            fail(f"expected {arguments}, got nothing")
        if arguments:
            main_arguments.append(words)

        try:
            load_modules(flags.FLAGS.load)
            main(*main_arguments)
            sys.stdout.flush()
        except BrokenPipeError as error:
            _end_without_reader(error)
        except Interrupted as interruption:
            print(f"{interruption}; saved. Run the same command again to resume.")
            sys.exit(128 + interruption.signum)
        except CheckpointError as error:
            _print_error(str(error))
            # Python's end takes away what hides the errors of late reads.
            sys.stdout.flush()
            os._exit(2)
        except USER_ERRORS as error:
            fail(str(error))

    app.run(guarded_main, argv=command_line, flags_parser=_parse_flags)


def take_changes(words: Sequence[str]) -> tuple[list[str], dict[str, str | bool]]:
    """Takes the changes of a config out of a command line.

    absl could not parse them, since their keys are those of the config file. As with
    its own flags, a dash may be missing, the value may be the next word, and one that
    is true or false may be written as --config.group.key and --noconfig.group.key.
    With a value, the latter ends the process in one line.

    Args:
      words: the command line.

    Returns:
      The other words, and group.key -> the text of its value, or True or False if
      none is written. `load_config` knows which keys may stand without a value.
    """
    other_words = []
    changes: dict[str, str | bool] = {}
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        change = CHANGE.fullmatch(word)
        if change is None:
            other_words.append(word)
            continue
        is_negated, key, value = change.groups()
        if is_negated and value is not None:
            fail(
                f"{word} has a value: write --noconfig.{key} alone, which is false, or "
                f"--config.{key}=VALUE"
            )
        if value is None and not is_negated and waiting and VALUE.match(waiting[0]):
            value = waiting.pop(0)
        changes[key] = not is_negated if value is None else value
    return other_words, changes


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in ~/.cache/nystromformer, up to a gigabyte.

    JAX_COMPILATION_CACHE_DIR names a different folder, whose size is the user's matter.
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off.
    """
    import jax  # a report computes nothing, and starts without it

    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(CACHE_FOLDER))
        jax.config.update("jax_compilation_cache_max_size", MAX_CACHE_BYTES)


def end_on_signals() -> None:
    """Lets a signal end the process with a line, until a `StopFlag` is entered.

    Ctrl-C stays as it is: Python would not hear it while XLA compiles.
    """
    for signum in set(SIGNALS) - {signal.SIGINT}:
        signal.signal(signum, _end_before_steps)
    sys.unraisablehook = _end_by_a_dropped_exit


def _end_before_steps(signum: int, frame: FrameType | None) -> NoReturn:
    reason = f"{Interrupted(signum)} before the first step; nothing to save"
    print(f"{reason}. Run the same command again.")
    sys.exit(128 + signum)


def _end_by_a_dropped_exit(dropped: Any) -> None:
    """Ends the process by an exit that Python drops, and would run on without.

    It drops what is raised in a `__del__` and in callbacks of the garbage collection,
    of which JAX has one.
    """
    error = dropped.exc_value
    if not isinstance(error, SystemExit) or not isinstance(error.code, int):
        sys.__unraisablehook__(dropped)
        return
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(error.code)


class StopFlag:
    """While entered, the first signal sets `signum`; a second Ctrl-C ends at once.

    A line on stderr answers the first signal, since saving may take a while.
    The handlers of before come back, but for that of `end_on_signals`.
    Only the main thread can handle signals: in any other one nothing sets `signum`.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is not threading.main_thread():
            return self
        for signum in SIGNALS:
            self._previous_handlers[signum] = signal.signal(signum, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._previous_handlers.items():
            is_too_late = handler is _end_before_steps
            signal.signal(signum, signal.SIG_DFL if is_too_late else handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
            line = (
                f"{Interrupted(signum)} as soon as all is saved; a second Ctrl-C ends "
                "it at once"
            )
            # The signal may have come while Python writes to a stream, which would
            # refuse another text. A progress bar may stand in the line. Whoever read
            # the stream may be gone, as `tee` is after Ctrl-C.
            with contextlib.suppress(OSError):
                os.write(2, f"\n{line}\n".encode())
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous_handlers[signum])


def loaded_modules() -> tuple[str, ...]:
    """Returns the modules that --load names, files by their absolute paths."""
    return absolute_names(flags.FLAGS.load)


def local_folder(text: str | None) -> Path:
    """Returns the folder that a flag names, as it is written.

    Raises:
      DataError: for one in a bucket, where only train.py writes.
      ConfigError: for an empty name, as of a variable that is not set, or a file.
    """
    if not text:
        raise ConfigError("a folder has an empty name: is a variable not set?")
    local_path(text)  # It raises DataError.
    folder = Path(text).expanduser()
    if folder.is_file():
        raise ConfigError(f"{folder} is a file: name a folder")
    return folder


def fail(message: str) -> NoReturn:
    """Prints the message in one line and ends the process with status 2."""
    _print_error(message)
    sys.exit(2)


def _end_without_reader(error: BrokenPipeError) -> NoReturn:
    """Ends as SIGPIPE does if nobody reads the output, as behind `| head`."""
    try:
        print(flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    fail(str(error))  # of a different pipe


def _print_error(message: str) -> None:
    print("error:", " ".join(message.split()), file=sys.stderr, flush=True)


def _read_flag_files(words: list[str]) -> list[str]:
    """Puts the lines of each --flagfile=FILE in its place: some may be changes."""
    try:
        return flags.FLAGS.read_flags_from_files(words)
    except flags.Error as error:
        fail(str(error).removeprefix("ERROR:: "))


def _parse_flags(argv: list[str]) -> list[str]:
    """Parses the flags; returns the other words."""
    try:
        return flags.FLAGS(argv)
    except flags.Error as error:
        # absl names a flag that has not been given, too, and says what it is not: None.
        missing = MISSING_FLAG.findall(str(error))
        lines = [f"give --{name}, {flags.FLAGS[name].help}" for name in missing]
        fail("; ".join(lines) or re.sub(r"^flag --\w+=None: ", "", str(error)))
    except SystemExit:
        sys.exit(0)  # absl has shown the help, and would end with 1


def _replace_unknown_letters() -> None:
    """Lets a terminal that does not know a letter, such as "…", show "?" instead."""
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(errors="replace")


def _name_user() -> None:
    """Names the user and the group after their numbers if the system has no names.

    In containers it often has none. etils looks up the owner of every file, and would
    fail for those whom the system does not know.
    """
    uid = os.getuid()
    gid = os.getgid()
    try:
        pwd.getpwuid(uid)
        grp.getgrgid(gid)
    except KeyError:
        home = os.environ.setdefault("HOME", tempfile.gettempdir())
        user = pwd.struct_passwd((str(uid), "", uid, gid, "", home, ""))
        group = grp.struct_group((str(gid), "", gid, []))
        pwd.getpwuid = lambda uid: user
        grp.getgrgid = lambda gid: group
