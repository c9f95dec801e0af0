"""Files of this program, and only those, side by side."""

import json

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.bench.results import FORMAT, compare, read_results


def row(name="linear", length=4, seconds=(1.0, 2.0, 4.0), peak=100):
    return {
        "key": {"what": "forward", "attention": name, "length": length, "options": {}},
        "cost": {"peak_bytes": peak},
        "stopped": None,
        "seconds": seconds and [*seconds],
        "measured_bytes": None,
        "matmul_share": None,
    }


def results(*rows, device="CPU"):
    source = {"format": FORMAT, "commit": "abc", "device": device, "versions": {}}
    return {**source, "rows": [*rows]}


def test_what_is_written_is_read_from_file_or_folder(tmp_path):
    (tmp_path / "benchmark.json").write_text(json.dumps(results(row())))
    for path in (tmp_path, tmp_path / "benchmark.json"):
        assert read_results(path)["rows"] == [row()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there"),
        ("{", "is not valid JSON"),
        ('{"task": "listops"}', "is no benchmark.json of"),
        ("[1]", "is no benchmark.json of"),
        (json.dumps({"format": FORMAT}), "is damaged"),
        (json.dumps(results({"key": {}})), "is damaged"),
    ],
)
def test_what_is_no_result_is_said(tmp_path, content, message):
    path = tmp_path / "other.json"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_results(path)


def test_only_equal_keys_are_compared_by_their_medians():
    ours = results(row(seconds=(1.0, 2.0, 9.0)), row(length=8), row("none", peak=5))
    theirs = results(row(seconds=(8.0, 8.0, 1.0), peak=50), row("none", seconds=None))
    _, first, second = compare(ours, theirs)
    assert "linear" in first
    assert "time  0.250 memory  2.000" in first
    assert "none" in second
    assert "time      — memory  0.050" in second


def test_an_option_that_came_later_is_at_its_default():
    old, new, other = row("nystrom-8"), row("nystrom-8"), row("nystrom-8")
    new["key"]["options"] = {"inverse": "iterative"}
    other["key"]["options"] = {"inverse": "exact"}
    assert len(compare(results(new), results(old))) == 2
    with pytest.raises(ConfigError, match="no row"):
        compare(results(other), results(old))


def test_other_devices_are_compared_only_when_asked():
    ours, theirs = results(row()), results(row(), device="GPU")
    with pytest.raises(ConfigError, match="'CPU' and 'GPU'; --any_device"):
        compare(ours, theirs)
    assert len(compare(ours, theirs, any_device=True)) == 2


def test_nothing_in_common_is_an_error():
    with pytest.raises(ConfigError, match="no row of the same sizes in common"):
        compare(results(row(length=4)), results(row(length=8)))
