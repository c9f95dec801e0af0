"""What the README says, run."""

import re
import shlex
import subprocess

import jax
import pytest

from tests.commands import ROOT

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    (python scripts/.*|make .*)$", README, re.MULTILINE)


def test_nothing_is_left_to_fill_in():
    assert not re.search(r"@[A-Z_]+@|TODO", README)


def test_there_are_snippets_and_commands_to_run():
    assert len(SNIPPETS) == 1
    assert {"make train", "make test"} <= {c.split("#")[0].strip() for c in COMMANDS}
    assert sum(command.startswith("python scripts/") for command in COMMANDS) >= 2


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_a_snippet_runs_and_gives_the_shape_it_says(snippet):
    assert len(snippet.split("\n\n")[1].strip().splitlines()) <= 8
    names: dict = {}
    with jax.numpy_rank_promotion("allow"):  # as in a reader's own program
        exec(snippet, names)
    assert names["y"].shape == (2, 4096, 512)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if c.startswith("python scripts/")]
)
def test_a_command_knows_its_flags_and_files(commands, command):
    script, *args = shlex.split(command.removeprefix("python scripts/"))
    args = [arg for arg in args if arg.startswith("--") and "…" not in arg]
    configs = [f"--config={ROOT}/{a[9:]}" for a in args if a.startswith("--config=")]
    done = commands.run(script, *configs, "--help")
    assert done.returncode == 0, done.stderr
    for arg in args:
        name = arg.removeprefix("--").partition("=")[0]
        shown = rf"^  --(\[no\])?{re.escape(name)}[:=]"
        assert re.search(shown, done.stdout, re.MULTILINE), arg


def test_make_knows_its_targets():
    targets = re.findall(r"`?make (train|paper|speed|test[a-z-]*|lint)\b", README)
    for target in set(targets):
        done = subprocess.run(
            ["make", "--dry-run", target], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0, target


def test_the_files_it_names_are_there():
    tree = README.split("## What is where")[1].split("**A new attention**")[0]
    for name in re.findall(r"^    (\S+)", tree, re.MULTILINE):
        assert (ROOT / name).exists(), name
