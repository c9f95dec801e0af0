"""The notebook runs and prints what it keeps; Linformer in place comes nearer."""

import nbformat
import pytest
from nbclient import NotebookClient

from tests.commands import ROOT

NOTEBOOK = ROOT / "examples" / "nystrom_in_pictures.ipynb"


@pytest.mark.slow
def test_notebook_runs_and_prints_what_it_keeps(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    kept, again = (nbformat.read(NOTEBOOK, 4) for _ in range(2))
    NotebookClient(again, timeout=240, kernel_name="python3").execute()

    def printed(notebook):
        cells = (cell.get("outputs", []) for cell in notebook.cells)
        return "".join(out.get("text", "") for outs in cells for out in outs)

    assert printed(again) == printed(kept)
    assert NOTEBOOK.stat().st_size < 500_000


@pytest.mark.slow
def test_linformer_in_place_is_nearer_than_a_fresh_one(commands, finished):
    script, workdir = ROOT / "examples/linformer_in_place.py", finished[0]
    done = commands.run(str(script), f"--workdir={workdir}", "--rows=4", "--steps=500")
    assert done.returncode == 0, done.stderr
    [row] = done.stdout.splitlines()[2:]
    fitted, fresh, *_, mflop, _, _, exact = map(float, row.split("|")[3:-1])
    assert fitted < 0.5 * fresh
    assert mflop < exact
