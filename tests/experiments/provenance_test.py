"""What stands on top of every result."""

import subprocess

import jax

from nystromformer.experiments import provenance
from tests.commands import ROOT


def test_the_commit_is_the_head_and_says_whether_files_differ():
    def git(*args):
        done = subprocess.run(
            ["git", "-C", ROOT, *args], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    assert provenance.commit() == (git("rev-parse", "HEAD") + dirty or None)


def test_a_session_is_noted_where_it_differs_from_the_one_before(monkeypatch):
    sessions = []
    assert provenance.note_session(sessions, 0) == []
    assert provenance.note_session(sessions, 20) == []
    [first] = sessions
    assert (first["step"], first["versions"]["jax"]) == (0, jax.__version__)
    monkeypatch.setattr(provenance, "commit", lambda: "another")
    monkeypatch.setattr(provenance, "device", lambda: "8 × GPU")
    assert provenance.note_session(sessions, 40) == [
        f"device 8 × GPU instead of {first['device']}",
        f"commit another instead of {first['commit']}",
    ]
    assert [session["step"] for session in sessions] == [0, 40]
