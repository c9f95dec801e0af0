"""The notebook runs and prints what it keeps; Linformer in place comes nearer."""

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


@pytest.mark.slow
def test_linformer_in_place_is_nearer_than_a_fresh_one(commands, finished):
    script = str(ROOT / "examples" / "linformer_in_place.py")
    workdir, _ = finished
    done = commands.run(script, f"--workdir={workdir}", "--rows=4", "--steps=500")
    assert done.returncode == 0, done.stderr
    header, _, row = done.stdout.splitlines()
    names = [cell.strip() for cell in header.split("|")[1:-1]]
    numbers = [float(cell) for cell in row.split("|")[1:-1]]
    value = dict(zip(names, numbers, strict=True))
    assert value["Linformer"] < 0.5 * value["fresh"]
    assert value["Linformer, MFLOP"] < value["exact, MFLOP"]
