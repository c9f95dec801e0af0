"""Two processes and one lock."""

import select
import subprocess
import sys

from lra_tasks.lock import hold

PROCESS = """
import sys
from pathlib import Path
from lra_tasks.lock import hold
with hold(Path(sys.argv[1]), "sleeping"):
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_the_second_says_what_it_waits_for_and_gets_the_lock_of_a_killed_one(tmp_path):
    def start():
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", PROCESS, str(tmp_path / "lock")]
        return subprocess.Popen(command, text=True, **pipes)

    first = start()
    assert first.stdout.readline() == "mine\n"
    second = start()
    line = second.stderr.readline()
    assert line == "another process is sleeping: waiting for it\n"
    assert not select.select([second.stdout], [], [], 0.3)[0]
    first.kill()
    assert second.communicate("", timeout=60) == ("mine\n", "")
    first.communicate()


def test_a_free_lock_is_taken_without_a_word(tmp_path, capsys):
    for _ in range(2):
        with hold(tmp_path / "lock", "sleeping"):
            pass
    assert capsys.readouterr() == ("", "")
