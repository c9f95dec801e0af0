"""The entry of all commands: modules of the user's own, and one-line errors."""

import grp
import importlib
import importlib.util
import os
import pwd
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import config_flags

from lra_tasks.errors import DataError
from nystromformer.errors import CheckpointError, ConfigError, NotFiniteError
from nystromformer.experiments.xla_flags import turn_off_cpu_fusions
from nystromformer.training.interrupt import Interrupted

# Errors that a user can correct; any other is a bug and shows its traceback.
USER_ERRORS = (ConfigError, DataError, CheckpointError, NotFiniteError, OSError)
flags.disclaim_key_flags()  # --help lists the flags below with the script's own


def run(
    main: Callable[..., None],
    arguments: str | None = None,
    registries: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Parses the flags, runs a command and ends the process.

    A user's error is one line and status 2.

    Args:
      main: the command.
      arguments: the name of positional ones as in "RUNS"; `main` is called with them.
      registries: the tables of names. If the file of the flag --config changes one, it
        counts as given by --load, too, so that whoever reads the run imports it.
    """
    streams: Any = (sys.stdout, sys.stderr)
    for stream in streams:
        stream.reconfigure(errors="replace")  # for a terminal without "…"
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # outside training nothing is saved
    _name_user()
    turn_off_cpu_fusions()  # before JAX starts XLA, be it in a module of --load
    flags.DEFINE_multi_string("load", [], "module, or path of its file, to import")

    def guarded(argv: list[str]) -> None:
        logging.set_verbosity(logging.WARNING)
        if bool(argv[1:]) != bool(arguments):
            fail(f"expected {arguments or 'no arguments'}, got {' '.join(argv[1:])!r}")
        try:
            main(argv[1:]) if arguments else main()
        except Interrupted as stopped:
            print(f"{stopped}; saved. Run the same command again to resume.")
            sys.exit(128 + stopped.signum)
        except USER_ERRORS as error:
            fail(str(error))

    app.run(guarded, flags_parser=partial(_parse_flags, registries=registries))


def _parse_flags(argv: list[str], registries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Parses --load before the others: a config may name what a module registers."""
    early = flags.FlagValues()
    early["load"] = flags.FLAGS["load"]
    try:
        early(argv, known_only=True)
        load_modules(early.load)
        before = [dict(registry) for registry in registries]
        words = flags.FLAGS(argv)
        if before != [dict(registry) for registry in registries]:
            file = config_flags.get_config_filename(flags.FLAGS["config"])
            flags.FLAGS.load = [*flags.FLAGS.load, file.partition(":")[0]]
        return words
    except (flags.Error, AttributeError, KeyError, *USER_ERRORS) as error:
        reason: Any = error
        if isinstance(error, AttributeError | KeyError):  # of ml_collections
            frames = traceback.extract_tb(error.__traceback__)
            if {"<module>", "get_config"} & {frame.name for frame in frames}:
                raise  # a bug in a module or a config
            reason = error.args[0]
            if isinstance(reason, KeyError):
                reason = f"no such key in the config: {reason.args[0]}"
        fail(str(reason).strip().splitlines()[-1])  # above it: a config's traceback


def _name_user() -> None:
    """Names a user without a passwd entry, as in containers: etils asks for owners."""
    try:
        _ = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    except KeyError:
        uid, gid = os.getuid(), os.getgid()
        home = os.environ.setdefault("HOME", tempfile.gettempdir())
        user = pwd.struct_passwd((str(uid), "", uid, gid, "", home, ""))
        group = grp.struct_group((str(gid), "", gid, []))
        pwd.getpwuid, grp.getgrgid = lambda uid: user, lambda gid: group


def loaded(*more: str) -> tuple[str, ...]:
    """The modules given here and by --load, files by their absolute paths."""
    return tuple(dict.fromkeys(map(_absolute, (*more, *flags.FLAGS.load))))


def load_modules(names: Iterable[str]) -> None:
    """Imports modules by name or file, each once; ConfigError where there is none."""
    for name in map(_absolute, names):
        if name.endswith(".py") and not os.path.exists(name):
            if os.path.basename(name) in map(os.path.basename, sys.modules):
                continue  # it has moved, and was loaded from where it is now
            raise ConfigError(
                f"--load={name}: no such file; if it has moved, --load it from its "
                "place now, under the same name"
            )
        try:
            if not name.endswith(".py"):
                importlib.import_module(name)
            elif name not in sys.modules:
                spec: Any = importlib.util.spec_from_file_location(name, name)
                sys.modules[name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
        except ModuleNotFoundError as error:
            raise ConfigError(f"--load={name}: {error}") from error


def _absolute(name: str) -> str:
    return str(Path(name).expanduser().absolute()) if name.endswith(".py") else name


def fail(message: str) -> NoReturn:
    """Exits with one line and status 2."""
    print("error:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)
