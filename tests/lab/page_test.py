"""A page says where it comes from and takes no other page's place."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.training.files import write_text

MADE_BY = {
    "command": "python scripts/some.py --x",
    "commit": "abc",
    "device": "CPU",
    "versions": {"jax": "1.2", "numpy": "3"},
}


def test_title_and_source_stand_on_top():
    assert page("Title", MADE_BY, ["line", ""]).splitlines() == [
        *("# Title", "", "- Command: `python scripts/some.py --x`", "- Commit: abc"),
        *("- Device: CPU", "- Versions: jax 1.2, numpy 3", "", "line"),
    ]


def test_the_source_is_the_command_that_runs(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/scripts/some.py", "--x=a b"])
    assert source()["command"] == "python scripts/some.py '--x=a b'"


def test_a_folder_is_made_or_taken_again_but_not_from_another_page(tmp_path):
    out = open_folder(tmp_path / "new" / "folder", "Title")
    write_text(out / PAGE, page("Title", MADE_BY, []))
    assert open_folder(out, "Title") == out
    assert [x.name for x in out.iterdir()] == [PAGE]
    with pytest.raises(ConfigError, match="is another page: name another --out"):
        open_folder(out, "Tit")
    (out / PAGE).write_bytes(b"\xff\xfe")  # no UTF-8
    with pytest.raises(ConfigError, match="is another page: name another --out"):
        open_folder(out, "Title")
    with pytest.raises(OSError, match="README"):
        open_folder(out / PAGE, "Title")
