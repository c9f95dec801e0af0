"""Tables and pages in Markdown."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.markdown import open_folder, page, table


def test_table_shows_markup_as_text():
    assert table(["name", "of_x", "value"], [["a|b", "*_`<", "two\nlines"]]) == [
        r"| name | of\_x | value |",
        "| --- | ---: | ---: |",
        r"| a\|b | \*\_\`\< | two lines |",
    ]


def test_page_says_where_its_numbers_come_from():
    versions = {"jax": "1.2", "numpy": "3"}
    made_by = {"command": "python x.py --y", "commit": None, "versions": versions}
    assert page("Title", made_by, ["line", ""]).splitlines() == [
        *("# Title", "", "- Command: `python x.py --y`", "- Commit: None"),
        *("- Versions: jax 1.2, numpy 3", "", "line"),
    ]


def test_open_folder_rejects_what_others_have_written(tmp_path):
    out = open_folder(tmp_path / "new" / "folder", "own.json")
    assert open_folder(out, "own.json") == out  # still empty
    (out / "thesis.md").write_text("# Thesis\n")
    with pytest.raises(ConfigError, match="is not empty and not ours"):
        open_folder(out, "own.json")
    (out / "own.json").touch()
    assert open_folder(out, "own.json") == out
