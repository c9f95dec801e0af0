"""The notebook runs from top to bottom, and its outputs are kept."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.commands import ROOT

NOTEBOOK = ROOT / "examples" / "nystrom_in_pictures.ipynb"


@pytest.mark.slow
def test_notebook_runs_and_prints_what_it_keeps(monkeypatch):
    """Its first four numbers are errors of M = 16 and 64 landmarks."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept = nbformat.read(NOTEBOOK, 4)
    again = nbformat.read(NOTEBOOK, 4)
    NotebookClient(again, timeout=240, kernel_name="python3").execute()

    def printed(notebook):
        cells = (cell.get("outputs", []) for cell in notebook.cells)
        return "".join(out.get("text", "") for outs in cells for out in outs)

    assert printed(again) == printed(kept)
    assert NOTEBOOK.stat().st_size < 500_000
