"""The process of a command: flags, --load, signals, errors in one line, the cache."""

import functools
import grp
import os
import pwd
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from lra_tasks.errors import DataError
from lra_tasks.paths import local_path
from nystromformer.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    NotFiniteError,
)
from nystromformer.experiments.plugins import (
    absolute_names,
    format_missing_key,
    format_parse_error,
    is_of_user_function,
    load_modules,
)
from nystromformer.experiments.xla_flags import turn_off_cpu_fusions

# Clusters send SIGUSR2 when the time is nearly up. SIGALRM is our own time limit.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGALRM)
CACHE_FOLDER = "~/.cache/nystromformer"
MAX_CACHE_BYTES = 2**30
# A user can correct these errors; any other is a bug and shows its traceback.
USER_ERRORS = (ConfigError, DataError, CheckpointError, NotFiniteError, OSError)
flags.disclaim_key_flags()  # --help lists the flags below with the script's own


def run(
    main: Callable[..., None],
    arguments: str | None = None,
    registries: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Parses the flags, runs a command and ends the process.

    The exit status is 2 for an error that the user can correct, and 128 plus the
    number of the signal for a run that a signal has stopped.

    Args:
      main: the command; it is called with the positional arguments, if it has any.
      arguments: the name of its positional arguments in messages, as in "RUNS"; None
        for a command that takes none.
      registries: the tables that a module may add to. If the file of the flag --config
        adds to one, it counts as given by --load, so that whoever reads the run
        imports it, too.
    """
    _replace_unknown_letters()
    # Outside of training a Ctrl-C has nothing to save.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _name_user()
    # A module of --load may make JAX start XLA, which reads its flags only once.
    turn_off_cpu_fusions()
    flags.DEFINE_multi_string("load", [], "module, or path of its file, to import")

    def guarded_main(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        words = argv[1:]
        if words and not arguments:
            fail(f"expected no arguments, got {' '.join(words)!r}")
        if arguments and not words:
            fail(f"expected {arguments}, got nothing")

        try:
            if arguments:
                main(words)
            else:
                main()
        except Interrupted as interruption:
            print(f"{interruption}; saved. Run the same command again to resume.")
            sys.exit(128 + interruption.signum)
        except USER_ERRORS as error:
            fail(str(error))

    app.run(
        guarded_main,
        flags_parser=functools.partial(_parse_flags, registries=registries),
    )


def use_compilation_cache() -> None:
    """Lets JAX keep compiled programs in ~/.cache/nystromformer, up to a gigabyte.

    JAX_COMPILATION_CACHE_DIR names a different folder, whose size is the user's matter.
    JAX_ENABLE_COMPILATION_CACHE=false turns the cache off.
    """
    import jax  # a report computes nothing, and starts without it

    if not jax.config.values["jax_compilation_cache_dir"]:
        jax.config.update("jax_compilation_cache_dir", os.path.expanduser(CACHE_FOLDER))
        jax.config.update("jax_compilation_cache_max_size", MAX_CACHE_BYTES)


class StopFlag:
    """While entered, the first signal sets `signum`; a second Ctrl-C ends at once.

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
            signal.signal(signum, handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous_handlers[signum])


def loaded_modules() -> tuple[str, ...]:
    """Returns the modules that --load names, files by their absolute paths."""
    return absolute_names(flags.FLAGS.load)


def local_folder(text: str | None) -> Path:
    """Returns the folder that a flag names, as it is written.

    Raises:
      DataError: for one in a bucket, where only train.py writes.
    """
    folder = str(text)
    local_path(folder)  # It raises DataError.
    return Path(folder).expanduser()


def fail(message: str) -> NoReturn:
    """Prints the message in one line and ends the process with status 2."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _parse_flags(argv: list[str], registries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Imports the modules of --load, then parses all flags; returns the other words.

    A config may name what a module registers, so the modules come first.
    """
    try:
        load_modules(_read_load_flag(argv))
        return _parse_all_flags(argv, registries)
    except (flags.Error, *USER_ERRORS) as error:
        fail(format_parse_error(error))
    except (AttributeError, KeyError) as error:
        if is_of_user_function(error):
            raise  # a bug in a module or a config file
        fail(format_missing_key(error))


def _parse_all_flags(
    argv: list[str], registries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Parses all flags, for which the config file is run; returns the other words.

    If the file adds to a registry, it becomes one of the modules of --load.
    """
    entries_before = [dict(registry) for registry in registries]
    words = flags.FLAGS(argv)
    entries = [dict(registry) for registry in registries]
    if entries != entries_before:
        config = config_flags.get_config_filename(flags.FLAGS["config"])
        config_file = config.partition(":")[0]  # Presets stand behind the colon.
        flags.FLAGS.load = [*flags.FLAGS.load, config_file]
    return words


def _read_load_flag(argv: Sequence[str]) -> list[str]:
    """Returns the values of --load, and leaves all other flags to a later parser."""
    flag_values = flags.FlagValues()
    flag_values["load"] = flags.FLAGS["load"]
    flag_values(argv, known_only=True)
    return flag_values.load


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
