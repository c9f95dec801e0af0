"""Fixtures of several files."""

import pytest

from tests.lra_tasks.archive_server import write
from tests.lra_tasks.small_corpus import FILES


@pytest.fixture
def texts(tmp_path):
    """A folder of the small corpus's documents; one of its folders is a link."""
    folder = tmp_path / "text"
    write(folder, FILES)
    (folder / "3").rename(tmp_path / "elsewhere")
    (folder / "3").symlink_to(tmp_path / "elsewhere")
    return folder
