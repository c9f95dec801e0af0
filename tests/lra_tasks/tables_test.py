"""Tables as programs write them: where a line ends, and what a text may hold."""

import csv
import io

import pytest

from lra_tasks.errors import DataError
from lra_tasks.tables import read_table


def read(folder, name, content):
    """The texts and labels of a table with this name and content."""
    path = folder / name
    path.write_bytes(content.encode())
    return read_table(path, ["text"], "label", ["ham", "spam"])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(("name", "separator"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_lines_end_as_on_every_system(tmp_path, capsys, name, separator, end):
    lines = ["label\ttext", "ham\tone", "", "spam\ttwo"]
    content = end.join(lines).replace("\t", separator)
    expected = [("one",), ("two",)], [0, 1]
    assert read(tmp_path, name, content) == expected
    assert read(tmp_path, name, content + end) == expected
    assert read(tmp_path, name, "\ufeff" + content) == expected
    # A blank line is none, and not one without its columns.
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("text", ["a\rb", "a\r\rb", "\ra", "a\u2028b\x0bc\x85d\x1ce"])
def test_what_ends_no_line_belongs_to_its_text(tmp_path, capsys, text, end):
    tsv = f"text\tlabel{end}{text}\tspam{end}"
    assert read(tmp_path, "a.tsv", tsv) == ([(text,)], [1])

    quoted = f'text,label{end}"{text}",spam{end}ok,ham{end}'
    assert read(tmp_path, "a.csv", quoted) == ([(text,), ("ok",)], [1, 0])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["a\r\nb", "a\nb\n\nc", 'a "b", c\r\n', "a\rb\n"])
def test_a_quoted_text_keeps_its_line_ends(tmp_path, text):
    content = io.StringIO(newline="")
    csv.writer(content).writerows([["text", "label"], [text, "ham"]])
    assert read(tmp_path, "a.csv", content.getvalue()) == ([(text,)], [0])


def test_a_text_of_a_csv_may_be_longer_than_python_takes_by_itself(tmp_path):
    limit = csv.field_size_limit(2**17)
    try:
        text = "x" * (2**17 + 1)
        assert read(tmp_path, "a.csv", f"text,label\n{text},ham") == ([(text,)], [0])
    finally:
        csv.field_size_limit(limit)


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        # "one" would be an example.
        ("ham,one\rtwo\nspam,ok\n", "line 2"),
        # All that follows would be one text.
        ('spam,ok\nham,"one\nspam,ok\nham,more\n', "lines 3 to 5"),
        ('ham,"one\nspam,"ok"\nham,more\n', "lines 2 to 3"),
        ('spam,ok\nham,"one" two\n', "line 3"),
    ],
)
def test_wrong_quotes_of_a_csv_are_named_by_their_lines(tmp_path, lines, place):
    message = f"a.csv, {place}: .*: quote a text with quotes or line breaks"
    with pytest.raises(DataError, match=message):
        read(tmp_path, "a.csv", "label,text\n" + lines)


def test_empty_columns_at_the_end_are_none(tmp_path):
    assert read(tmp_path, "a.csv", "text,label\none,ham,,\n") == ([("one",)], [0])


def test_lines_with_too_many_columns_or_too_few_are_left_out(tmp_path, capsys):
    tsv = "text\tlabel\none\tham\t\ntwo\tham\tx\nthree\n"
    assert read(tmp_path, "a.tsv", tsv) == ([("one",)], [0])
    assert "2 of 3 lines lack a column or have too many" in capsys.readouterr().err
