"""Where numbers come from; tables and pages in Markdown."""

import importlib.metadata
import platform
import shlex
import sys

import jax
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.provenance import open_folder, page, source, table


def test_source_has_the_command_as_a_shell_takes_it(monkeypatch):
    argv = ["scripts/train.py", "--workdir=my runs/a", "--config.x='1'", "$HOME", "*"]
    monkeypatch.setattr(sys, "argv", argv)
    assert shlex.split(source()["command"]) == ["python", *argv]


def test_source_has_the_versions_of_what_computes_and_the_device(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    versions = source()["versions"]
    assert versions.pop("python") == platform.python_version()
    assert versions.pop("XLA_FLAGS") == "--xla_dump_to=here"
    assert versions == {x: importlib.metadata.version(x) for x in versions}
    assert {"jax", "jaxlib", "flax", "optax", "numpy"} < {*versions}
    assert versions["jax"] == jax.__version__
    assert source()["device"].startswith(f"CPU {platform.machine()}, ")


def test_table_shows_markup_as_text():
    assert table(["name", "of_x", "value"], [["a|b", "*_`<", "two\nlines"]]) == [
        r"| name | of\_x | value |",
        "| --- | ---: | ---: |",
        r"| a\|b | \*\_\`\< | two lines |",
    ]


def test_page_says_where_its_numbers_come_from():
    made_by = {"command": "x.py", "commit": None, "versions": {"jax": "1", "b": "3"}}
    found = page("Title", made_by, ["line", ""])
    head = "- Command: `x.py`\n- Commit: None\n- Versions: jax 1, b 3"
    assert found == f"# Title\n\n{head}\n\nline\n"


def test_open_folder_rejects_what_others_have_written(tmp_path):
    out = open_folder(tmp_path / "new" / "folder", "own.json")
    assert open_folder(out, "own.json") == out  # still empty
    (out / "thesis.md").write_text("# Thesis\n")
    with pytest.raises(ConfigError, match="is not empty and not ours"):
        open_folder(out, "own.json")
    (out / "own.json").touch()
    assert open_folder(out, "own.json") == out
