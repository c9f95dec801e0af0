"""A page says where it comes from and takes no other page's place."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.page import PAGE, open_folder, page, source

MADE_BY = {
    "command": "python scripts/some.py --x",
    "commit": "abc",
    "device": "CPU",
    "versions": {"jax": "1.2", "numpy": "3"},
}


def test_title_and_source_stand_on_top(monkeypatch):
    assert page("Title", MADE_BY, ["line", ""]).splitlines() == [
        *("# Title", "", "- Command: `python scripts/some.py --x`", "- Commit: abc"),
        *("- Device: CPU", "- Versions: jax 1.2, numpy 3", "", "line"),
    ]
    monkeypatch.setattr("sys.argv", ["/somewhere/scripts/some.py", "--x=a b"])
    assert source()["command"] == "python scripts/some.py '--x=a b'"
    assert source().keys() == MADE_BY.keys()


def test_a_folder_is_made_or_taken_again_and_no_other_is_touched(tmp_path):
    out = open_folder(tmp_path / "new" / "folder", "Title")
    assert open_folder(out, "Title") == out  # of a command that was killed
    (out / PAGE).write_text(page("Title", MADE_BY, []))
    (out / "figure.png").touch()
    assert open_folder(out, "Title") == out
    refused = "was not made by this command: name another folder"
    with pytest.raises(ConfigError, match=refused):
        open_folder(out, "Tit")
    for mine in (b"# Title\n\nMy own thoughts.\n", b"\xff\xfe"):
        (out / PAGE).write_bytes(mine)
        with pytest.raises(ConfigError, match=refused):
            open_folder(out, "Title")
        assert (out / PAGE).read_bytes() == mine
    (out / PAGE).unlink()  # what is left is still somebody's
    with pytest.raises(ConfigError, match=refused):
        open_folder(out, "Title")
    with pytest.raises(ConfigError, match="is a file"):
        open_folder(out / "figure.png", "Title")
