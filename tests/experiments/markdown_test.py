"""Tables and pages in Markdown."""

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.markdown import check_folder, make_page, make_table


def test_make_table_shows_markup_as_text():
    assert make_table(["name", "of_x", "value"], [["a|b", "*_`<", "two\nlines"]]) == [
        r"| name | of\_x | value |",
        "| --- | ---: | ---: |",
        r"| a\|b | \*\_\`\< | two lines |",
    ]


def test_make_page_says_where_its_numbers_come_from():
    made_by = {"command": "x.py", "commit": None, "versions": {"jax": "1", "b": "3"}}
    head = "- Command: `x.py`\n- Commit: None\n- Versions: jax 1, b 3"
    assert make_page("Title", made_by, ["line", ""]) == f"# Title\n\n{head}\n\nline\n"


def test_check_folder_rejects_files_of_others(tmp_path):
    (tmp_path / "thesis.md").write_text("# Thesis\n")
    with pytest.raises(ConfigError, match="contains files of something else"):
        check_folder(tmp_path, "own.json")


def test_check_folder_takes_a_new_an_empty_and_an_earlier_folder(tmp_path):
    folder = tmp_path / "new" / "folder"
    check_folder(folder, "own.json")
    assert not folder.exists()
    folder.mkdir(parents=True)
    check_folder(folder, "own.json")
    (folder / "own.json").touch()
    (folder / "more.md").touch()
    check_folder(folder, "own.json")
