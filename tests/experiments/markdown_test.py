"""What stands in a cell is shown as it is."""

from nystromformer.experiments.markdown import table


def test_markdown_reads_no_markup_in_a_cell():
    assert table(["name", "of_x", "value"], [["a|b", "*_`<", "two\nlines"]], 2) == [
        r"| name | of\_x | value |",
        "| --- | --- | ---: |",
        r"| a\|b | \*\_\`\< | two lines |",
    ]
