"""One line of an error, whatever a library says."""

import pytest

from nystromformer.training.files import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n one \n two"), "one "),
        (KeyError(), "KeyError"),
        (ValueError(" \n"), "ValueError"),
        (ValueError("x" * 201), "x" * 200),
    ],
)
def test_the_first_line_or_the_type(error, line):
    assert first_line(error) == line
