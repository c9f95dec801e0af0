"""Tables and pages in Markdown."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.provenance import open_folder, page, table


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
