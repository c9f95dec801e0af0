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
    num_layers = 3
    num_heads = 4
    shapes = [array.shape for array in names["heads"]]
    assert shapes == [(2, 128, num_heads, 16)] * 3 * num_layers
    table = names["diagnosis"].table
    # The page diagnoses each head with two numbers of landmarks.
    assert len(table) == 2 * num_layers * num_heads
    assert set(table["limited_by"]) == {""}
    assert table["nystrom"].max() < 0.1
    assert (tmp_path / "bert.png").is_file()
