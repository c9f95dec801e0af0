"""One line and a status for what a person can mend; a traceback for a bug."""

import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.cli import (
    SIGNALS,
    StopFlag,
    local_folder,
    take_changes,
)
from nystromformer.experiments.plugins import load_modules
from tests.commands import ROOT, SCRIPTS, refused

PROGRAM = """
import os, signal, sys
from etils import epath
from nystromformer.errors import CheckpointError, ConfigError
from nystromformer.experiments import cli
from nystromformer.errors import Interrupted
def main(words=None):
    {body}
{before}
cli.run(main, {arguments})
"""


@pytest.fixture
def run_main(commands, tmp_path):
    """Runs a command whose main has this body, with these arguments."""

    def run_main(body, *arguments, asks_for=None, before=""):
        script = tmp_path / "script.py"
        program = PROGRAM.format(body=body, arguments=repr(asks_for), before=before)
        script.write_text(program)
        return commands.run(str(script), *arguments)

    return run_main


# Of the reads of a damaged checkpoint one fails first, and others fail at the end.
READS = """
import atexit
def read_damaged_file():
    atexit.register(print, 'Traceback', file=sys.stderr)
    raise CheckpointError('damaged')
"""


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise ConfigError('two\\nlines')", 2, "error: two lines\n"),
        ("open('/no/such')", 2, "error: [Errno 2] No such file or d"),
        ("raise Interrupted(signal.SIGTERM, 3)", 143, ""),
        ("read_damaged_file()", 2, "error: damaged\n"),
    ],
)
def test_run_ends_in_one_line_and_a_status(run_main, body, status, message):
    done = run_main(body, before=READS)
    assert done.returncode == status
    assert done.stderr.startswith(message)
    num_lines = 1 if message else 0
    assert len(done.stderr.splitlines()) == num_lines


# A module that every command imports: as if Ctrl-C were pressed meanwhile.
PRESSES_CTRL_C = """
import importlib.util, os, signal
print(importlib.util.find_spec("nystromformer").origin, flush=True)
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_command_begins_with_its_own_package_and_ctrl_c_without_traceback(
    script, tmp_path
):
    (tmp_path / "absl.py").write_text(PRESSES_CTRL_C)
    (tmp_path / "nystromformer.py").touch()  # as of another checkout
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / script],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.strip() == str(ROOT / "nystromformer" / "__init__.py")


@pytest.mark.parametrize(
    ("words", "others", "changes"),
    [
        ("--config.train.seed=3", "", {"train.seed": "3"}),
        ("-config.train.seed 3 a", "a", {"train.seed": "3"}),
        ("--config.a.b --config.a.c=d=e", "", {"a.b": True, "a.c": "d=e"}),
        ("--noconfig.a.b c", "c", {"a.b": False}),
        ("--config.a.b -0.1 --config.a.c -x", "-x", {"a.b": "-0.1", "a.c": True}),
        (
            "a --config=b.py:c --d=e --config_x",
            "a --config=b.py:c --d=e --config_x",
            {},
        ),
    ],
)
def test_changes_of_a_config_are_taken_out_of_a_command_line(words, others, changes):
    assert take_changes(words.split()) == (others.split(), changes)


def test_a_negated_change_of_a_config_takes_no_value(capsys):
    with pytest.raises(SystemExit):
        take_changes(["--noconfig.a.b=true"])
    assert capsys.readouterr().err == (
        "error: --noconfig.a.b=true has a value: write --noconfig.a.b alone, which is "
        "false, or --config.a.b=VALUE\n"
    )


def test_a_file_of_flags_may_change_the_config(commands, tmp_path):
    file = tmp_path / "flags.txt"
    file.write_text(f"--config={ROOT}/configs/listops.py:quick\n--config.train.seed=7")
    words = ["train.py", f"--flagfile={file}", "--print_config"]
    done = commands.run(*words)
    assert "config.train.seed = 7\n" in done.stdout, done.stderr
    done = commands.run(*words, "--config.train.seed=8")
    assert "config.train.seed = 8\n" in done.stdout, done.stderr
    file.unlink()
    assert f"No such file or directory: '{file}'" in refused(commands.run(*words))


def test_run_shows_the_traceback_of_a_bug(run_main, tmp_path):
    done = run_main("[][1]", "--verbosity=0")
    assert done.returncode == 1
    assert "IndexError" in done.stderr

    module = tmp_path / "mine.py"
    module.write_text("import math\nmath.no_such_name")
    done = run_main("print('ran')", f"--load={module}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert f'File "{module}", line 2' in done.stderr


def test_run_passes_positional_arguments_wherever_flags_stand(run_main):
    done = run_main("print(words)", "a", "--verbosity=0", "b", asks_for="RUNS")
    assert (done.returncode, done.stdout) == (0, "['a', 'b']\n")
    none = run_main("print('ran')", asks_for="RUNS")
    assert (none.stdout, none.stderr) == ("", "error: expected RUNS, got nothing\n")


def test_run_says_what_a_flag_is_that_has_to_be_given(run_main):
    before = "from absl import flags; flags.DEFINE_string('out', None, 'a folder', "
    done = run_main("print('ran')", before=before + "required=True)")
    assert refused(done) == "error: give --out, a folder\n"
    before += "required=True); " + before.replace("out", "run")
    done = run_main("print('ran')", before=before + "required=True)")
    assert refused(done) == "error: give --out, a folder; give --run, a folder\n"


# Few lines are written when the command ends, many while it prints.
@pytest.mark.parametrize("count", [1, 100_000])
def test_run_ends_without_a_word_where_nobody_reads_on(run_main, count):
    before = """
read_end, write_end = os.pipe()
os.close(read_end)
sys.stdout = open(write_end, 'w')
"""
    done = run_main(f"for _ in range({count}): print('a line')", before=before)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_run_serves_users_without_a_name_and_terminals_without_unicode(run_main):
    body = "print('…', epath.Path('/').stat().owner)"
    before = "sys.stdout.reconfigure(encoding='ascii')"
    # The user's rights stay root's: this checkout may be in a folder of root alone.
    before += "; os.setregid(54321, 0); os.setreuid(54321, 0)"
    done = run_main(body, before=before)
    assert done.stdout == "? 54321\n", done.stderr


def test_run_rejects_a_module_that_is_not_there(run_main, tmp_path):
    for name in ("no_such_module", f"{tmp_path}/no.py", "./mine", "a..b", ""):
        done = run_main("print('ran')", f"--load={name}")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: --load={name}: ")


def test_load_modules_runs_a_file_again_that_has_failed(tmp_path):
    file = tmp_path / "mended.py"
    file.write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        load_modules([str(file)])
    file.write_text("value = 3")
    load_modules([str(file)])
    assert sys.modules[str(file)].value == 3


def test_commands_of_these_tests_leave_no_file(run_main, tmp_path, monkeypatch):
    run_main("print('ran')")  # the first one starts the server, which keeps a folder
    streams = tmp_path / "streams"
    streams.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(streams))
    num_open = len(os.listdir("/dev/fd"))
    assert run_main("print('ran')").stdout == "ran\n"
    assert len(os.listdir("/dev/fd")) == num_open
    assert not list(streams.iterdir())


def test_a_folder_that_a_flag_names_is_no_file(tmp_path):
    assert local_folder(str(tmp_path / "new")) == tmp_path / "new"
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"/file is a file: name a folder"):
        local_folder(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"empty name: is a variable not set\?"):
        local_folder("")


CACHE_PROGRAM = """
import jax
from nystromformer.experiments.cli import use_compilation_cache
use_compilation_cache()
print(jax.config.jax_compilation_cache_dir, jax.config.jax_compilation_cache_max_size)
"""


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("", "{home}/.cache/nystromformer 1073741824"), ("/of/mine", "/of/mine -1")],
)
def test_programs_are_kept_in_the_home_folder_unless_jax_has_another(
    commands, tmp_path, folder, expected
):
    script = tmp_path / "script.py"
    script.write_text(CACHE_PROGRAM)
    environment = {"HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": folder}
    done = commands.with_env(**environment).run(str(script))
    assert done.stdout.strip() == expected.format(home=tmp_path), done.stderr


# Python drops what is raised in these places. JAX has a callback like the first.
CALLBACK = """
import gc
def send_below():
    gc.callbacks.append(lambda *_: os.kill(os.getpid(), signal.SIGUSR2))
    gc.collect()
"""
DELETION = """
class Sender:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGUSR2)
def send_below():
    Sender()
"""


@pytest.mark.parametrize("before", [CALLBACK, DELETION])
def test_a_signal_ends_a_command_also_where_python_drops_what_is_raised(
    run_main, before
):
    body = "cli.end_on_signals(); send_below(); print('went on')"
    done = run_main(body, before=before)
    assert done.returncode == 128 + signal.SIGUSR2
    assert done.stdout == (
        "stopped by SIGUSR2 before the first step; nothing to save. "
        "Run the same command again.\n"
    )


@pytest.mark.parametrize("signum", SIGNALS)
def test_stop_flag_is_the_first_signal_and_handlers_come_back(signum, capfd):
    before = [signal.getsignal(x) for x in SIGNALS]
    with StopFlag() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signum)
        assert stop.signum == signum
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signum
        # It is said at once, and of the first signal alone.
        (line,) = capfd.readouterr().err.split("\n")[1:-1]
    why = "its time limit" if signum == signal.SIGALRM else signum.name
    assert line.startswith(f"stopped by {why} as soon as all is saved; a second Ctrl-C")
    assert [signal.getsignal(x) for x in SIGNALS] == before


def test_stop_flag_is_set_where_nobody_reads_what_it_says(monkeypatch):
    """As in `train.py 2>&1 | tee log`, where Ctrl-C ends tee, too."""
    reader, writer = os.pipe()
    os.close(reader)
    write = os.write
    monkeypatch.setattr(os, "write", lambda _, line: write(writer, line))
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
    os.close(writer)


def test_stop_flag_leaves_the_handlers_alone_outside_the_main_thread():
    before = [signal.getsignal(x) for x in SIGNALS]
    signums = []

    def enter():
        with StopFlag() as stop:
            signums.append(stop.signum)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert signums == [None]
    assert [signal.getsignal(x) for x in SIGNALS] == before


def test_stop_flag_lets_the_second_ctrl_c_end_at_once():
    with StopFlag() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
