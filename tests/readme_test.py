"""What the README says, run."""

import importlib
import re
import shlex

import jax
import pytest

from tests.commands import ROOT

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    (python scripts/.*|make .*)$", README, re.MULTILINE)
SCRIPTS = [c for c in COMMANDS if c.startswith("python scripts/")]


def test_there_are_a_snippet_and_commands_and_nothing_is_left_to_fill_in():
    assert (len(SNIPPETS), len(SCRIPTS) >= 2) == (2, True)
    assert {"make train", "make test"} <= {c.split("#")[0].strip() for c in COMMANDS}
    assert not re.search(r"@[A-Z_]+@|TODO", README)


def test_the_snippets_run_and_give_the_shapes_they_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    with jax.numpy_rank_promotion("allow"):  # as in a reader's own program
        for snippet in SNIPPETS:
            exec(snippet, names)
    assert names["y"].shape == (2, 4096, 512)
    assert names["heat"].shape == (10_000,)
    assert (tmp_path / "heat_map.png").is_file()


@pytest.mark.parametrize("script", sorted({c.split()[1] for c in SCRIPTS}))
def test_commands_know_their_flags_files_and_keys(commands, script):
    done = commands.run(script.removeprefix("scripts/"), "--help")
    assert done.returncode == 0, done.stderr
    for command in (c for c in SCRIPTS if c.split()[1] == script):
        config = None
        for arg in shlex.split(command)[2:]:
            name, _, value = arg.removeprefix("--").partition("=")
            if name == "config":
                path, _, words = value.partition(":")
                module = path.removesuffix(".py").replace("/", ".")
                config = importlib.import_module(module).get_config(words)
            elif name.startswith("config."):
                group, key = name.split(".")[1:]
                assert config
                assert key in config[group], arg
            elif arg.startswith("--"):
                shown = rf"^  --(\[no\])?{re.escape(name)}[:=]"
                assert re.search(shown, done.stdout, re.MULTILINE), arg


def test_the_targets_and_files_it_names_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (train|paper|speed|test[a-z-]*|lint)\b", README):
        assert f"\n{target}:" in makefile, target
    tree = README.split("## What is where")[1].split("**A new attention**")[0]
    for name in re.findall(r"^    (\S+)", tree, re.MULTILINE):
        assert (ROOT / name).exists(), name
