"""Any run folder, a stranger's included: a report, or one error and nothing."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.config import ConfigError
from nystromformer.experiments.report.document import texts
from nystromformer.experiments.report.frame import make_frame
from nystromformer.experiments.report.runs import read_metrics, read_runs
from tests.experiments.report.conftest import Runs
from tests.fuzz.json_values import values

keys = st.sampled_from(["step", "split", "loss", "accuracy"]) | st.text(max_size=3)
rows = st.dictionaries(keys, values, max_size=5).map(json.dumps)
lines = st.lists(rows | st.text(max_size=20), max_size=5).map("\n".join)


@given(lines.map(str.encode) | st.binary())
def test_any_metrics_are_rows_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert all(0 <= row["step"] <= 9 for row in read_metrics(path, num_steps=9))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("fuzz")).finished("run")


@pytest.mark.slow
@given(changes=st.data(), metrics=lines)
def test_any_result_is_reported_or_left_out(run, changes, metrics):
    original = (run / "result.json").read_text()
    result = json.loads(original)
    known = st.sampled_from([*result, "sha256", "metric", "fraction_exact"])
    changed = changes.draw(st.dictionaries(known, values, max_size=3))
    try:
        (run / "result.json").write_text(json.dumps({**result, **changed}))
        (run / "metrics.jsonl").write_text(metrics, "utf-8", "surrogatepass")
        runs, skipped = read_runs([run])
        assert len(runs) + len(skipped) == 1
        if runs:
            report = texts(make_frame(runs)[0], {"listops": {}})
            assert "<table" in report["report.html"]
            assert report["report.md"].startswith("# Report")
            assert "toprule" in report["table.tex"]
    finally:
        (run / "result.json").write_text(original)
