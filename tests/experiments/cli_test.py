"""One line and a status for what a person can mend; a traceback for a bug."""

import pytest

PROGRAM = """
import os, signal
from nystromformer.experiments import cli
from nystromformer.config import ConfigError
from nystromformer.training.interrupt import Interrupted
def main(words=None):
    {body}
cli.run(main, {arguments})
"""


@pytest.fixture
def run_main(commands, tmp_path):
    """Runs a command whose main has this body, started with these words."""

    def run_main(body: str, *words: str, asks_for: str = ""):
        arguments = f"arguments={asks_for!r}" if asks_for else ""
        script = tmp_path / "script.py"
        script.write_text(PROGRAM.format(body=body, arguments=arguments))
        return commands.run(str(script), *words)

    return run_main


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise ConfigError('two\\nlines')", 2, "error: two lines\n"),
        ("open('/no/such')", 2, "error: /no/such: No such file or directory\n"),
        ("os.kill(os.getpid(), signal.SIGHUP)", 129, "stopped by SIGHUP\n"),
        (
            "type('A', (), {'__del__': lambda self: signal.raise_signal(15)})()",
            *(143, "stopped by SIGTERM\n"),
        ),
        ("raise Interrupted(signal.SIGTERM, 3)", 143, ""),
        ("raise BrokenPipeError", 129, ""),
    ],
)
def test_what_a_person_causes_is_one_line_and_a_status(run_main, body, status, message):
    done = run_main(body)
    assert (done.returncode, done.stderr) == (status, message)


def test_a_bug_keeps_its_traceback(run_main):
    done = run_main("[][1]")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "IndexError" in done.stderr


def test_a_command_gets_the_arguments_that_it_asks_for_wherever_flags_stand(run_main):
    done = run_main("print(words)", "a", "--verbosity=0", "b", asks_for="RUNS")
    assert (done.returncode, done.stdout) == (0, "['a', 'b']\n")
    none = run_main("print('ran')", asks_for="RUNS")
    said = "error: no RUNS given; see --help\n"
    assert (none.returncode, none.stdout, none.stderr) == (2, "", said)
