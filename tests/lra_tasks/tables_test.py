"""Tables as programs write them: where a line ends, and what a text may hold."""

import csv

import pytest

from lra_tasks.errors import DataError
from lra_tasks.tables import read_table


def read(folder, name, content):
    path = folder / name
    path.write_bytes(content.encode())
    return read_table(path, ["text"], "label", ["ham", "spam"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("name", "tab"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_lines_end_as_on_every_system(tmp_path, name, tab, end):
    lines = ["label\ttext", "ham\tone", "", "spam\ttwo"]
    content = end.join(lines).replace("\t", tab)
    for whole in (content, content + end, "\ufeff" + content):
        assert read(tmp_path, name, whole) == ([("one",), ("two",)], [0, 1])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("text", ["a\rb", "a\r\rb", "\ra", "a\u2028b\x0bc\x85d\x1ce"])
def test_what_ends_no_line_belongs_to_its_text(tmp_path, capsys, text, end):
    header, line = f"text\tlabel{end}", f"{text}\tspam{end}"
    assert read(tmp_path, "a.tsv", header + line) == ([(text,)], [1])
    quoted = f'text,label{end}"{text}",spam{end}ok,ham{end}'
    assert read(tmp_path, "a.csv", quoted) == ([(text,), ("ok",)], [1, 0])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["a\r\nb", "a\nb\n\nc", 'a "b", c\r\n', "a\rb\n"])
def test_a_quoted_text_keeps_its_line_ends(tmp_path, text):
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "label"], [text, "ham"]])
    content = (tmp_path / "a.csv").read_bytes().decode()
    assert read(tmp_path, "a.csv", content) == ([(text,)], [0])


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ("ham,one\rtwo\nspam,ok\n", 2),  # else "one" would be an example
        ('ham,"one\nspam,ok\nham,more\n', 4),  # else one text would be the rest
        ('spam,ok\nham,"one" two\n', 3),
    ],
)
def test_wrong_quotes_of_a_csv_are_named_by_their_line(tmp_path, lines, number):
    message = f"a.csv, line {number}: .*: quote a text with quotes or line breaks"
    with pytest.raises(DataError, match=message):
        read(tmp_path, "a.csv", "label,text\n" + lines)


def test_empty_columns_at_the_end_are_none(tmp_path, capsys):
    assert read(tmp_path, "a.csv", "text,label\none,ham,,\n") == ([("one",)], [0])
    found = read(tmp_path, "a.tsv", "text\tlabel\none\tham\t\ntwo\tham\tx\nthree\n")
    assert found == ([("one",)], [0])
    assert "2 of 3 lines lack a column or have too many" in capsys.readouterr().err
