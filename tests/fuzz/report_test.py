"""Any run folder, a stranger's included: a report, or one error and nothing."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nystromformer.config import ConfigError
from nystromformer.lab.report.page import Report
from nystromformer.lab.report.points import group
from nystromformer.lab.report.runs import read_metrics, read_runs
from tests.fuzz.json_values import values
from tests.lab.report.conftest import Runs

keys = st.sampled_from(["step", "split", "loss", "accuracy"]) | st.text(max_size=3)
rows = st.dictionaries(keys, values, max_size=5).map(json.dumps)
lines = st.lists(rows | st.text(max_size=20), max_size=5).map("\n".join)


@given(lines.map(str.encode) | st.binary())
def test_any_metrics_are_rows_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        assert all(type(row["step"]) is int for row in read_metrics(path))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("fuzz")).finished("run")


@given(changes=st.data(), metrics=lines)
def test_any_result_is_reported_or_one_error(run, changes, metrics):
    original = (run / "result.json").read_text()
    result = json.loads(original)
    changed = changes.draw(
        st.dictionaries(st.sampled_from([*result, "sha256"]), values, max_size=3)
    )
    try:
        (run / "result.json").write_text(json.dumps({**result, **changed}))
        (run / "metrics.jsonl").write_text(metrics, "utf-8", "surrogatepass")
        with contextlib.suppress(ConfigError):
            report = Report.of(group(read_runs([run])), {"listops": {}})
            assert "<table" in report.html()
            assert report.markdown().startswith("# Report")
    finally:
        (run / "result.json").write_text(original)
