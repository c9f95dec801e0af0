"""One line and a status for what a person can mend; a traceback for a bug."""

import subprocess
import sys
import textwrap

import pytest

from tests.scripts.conftest import ROOT


def run_main(body: str) -> subprocess.CompletedProcess:
    """A command whose main has this body."""
    program = f"""
        import os, signal
        from scripts import command
        from nystromformer.config import ConfigError
        from nystromformer.training.interrupt import Interrupted
        def main():
            {body}
        command.run(main)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("raise ConfigError('two\\nlines')", 2, "error: two lines\n"),
        ("open('/no/such')", 2, "error: /no/such: No such file or directory\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "stopped by SIGTERM\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "stopped by SIGINT\n"),
        ("raise Interrupted(signal.SIGTERM, 3)", 143, ""),
    ],
)
def test_what_a_person_causes_is_one_line_and_a_status(body, status, message):
    done = run_main(body)
    assert (done.returncode, done.stderr) == (status, message)


def test_a_bug_keeps_its_traceback():
    done = run_main("[][1]")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "IndexError" in done.stderr
