"""What the README says, run."""

import importlib
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import attention, make_attention
from nystromformer.attention import ATTENTIONS
from tests.commands import ROOT

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^    (python scripts/.*|make .*)$", README, re.MULTILINE)
SCRIPTS = [c for c in COMMANDS if c.startswith("python scripts/")]


def test_readme_has_snippets_and_commands():
    assert (len(SNIPPETS), len(SCRIPTS) >= 2) == (3, True)
    assert {"make train", "make test"} <= {c.split("#")[0].strip() for c in COMMANDS}


def test_readme_snippets_run_and_give_the_shapes_they_say(monkeypatch):
    monkeypatch.setattr(attention, "ATTENTIONS", dict(ATTENTIONS))
    names: dict = {}
    with jax.numpy_rank_promotion("allow"):  # as in a reader's own program
        for snippet in SNIPPETS:
            exec(snippet, names)
    assert names["y"].shape == (2, 4096, 512)
    assert names["heat"].shape == (10_000,)
    mine = make_attention(
        "mine", num_heads=2, head_dim=3, max_length=5, rngs=nnx.Rngs(0)
    )
    x = jnp.ones((1, 5, 2, 3))
    np.testing.assert_array_equal(mine(x, x, x), x)  # the mean of equal values


@pytest.mark.parametrize("script", sorted({c.split()[1] for c in SCRIPTS}))
def test_readme_commands_know_their_flags_files_and_keys(commands, script):
    done = commands.run(script.removeprefix("scripts/"), "--help")
    assert done.returncode == 1, done.stderr  # absl's, of --help
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


def test_readme_names_targets_and_files_that_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make (train|paper|speed|test[a-z-]*|lint)\b", README):
        assert f"\n{target}:" in makefile, target
    tree = README.split("## Find your way")[1].split("A change passes")[0]
    for name in re.findall(r"^    ([^\s,]+)", tree, re.MULTILINE):
        assert (ROOT / name).exists(), name
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README):
        assert (ROOT / path).exists(), path
