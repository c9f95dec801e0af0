"""What docs/measuring.md says of a model of transformers, run."""

import pytest

from tests.commands import ROOT
from tests.readme_test import run_snippets

pytest.importorskip("torch", reason="the page records a model of PyTorch")
pytest.importorskip("transformers", reason="the page records a model of transformers")

pytestmark = pytest.mark.parity


def test_measuring_page_diagnoses_a_bert(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = run_snippets(ROOT / "docs/measuring.md", monkeypatch)
    assert [array.shape for array in names["heads"]] == [(2, 128, 4, 16)] * 9
    table = names["diagnosis"].table
    assert len(table) == 3 * 4 * 2  # layers, heads, numbers of landmarks
    assert set(table["limited_by"]) == {""}
    assert table["nystrom"].max() < 0.1
    assert (tmp_path / "bert.png").is_file()
