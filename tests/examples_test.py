"""The notebook prints what it keeps."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.commands import ROOT

NOTEBOOK = ROOT / "examples" / "nystrom_in_pictures.ipynb"


def printed_text(notebook):
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text", ""))
    return "".join(texts)


@pytest.mark.slow
def test_notebook_runs_and_prints_what_it_keeps(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, 4)
    expected_text = printed_text(notebook)
    NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert printed_text(notebook) == expected_text
    assert NOTEBOOK.stat().st_size < 500_000
