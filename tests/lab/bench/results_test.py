"""Files of this program, and only those, side by side."""

import json

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.bench.results import FORMAT, compare, read_results


def row(name="linear", length=4, seconds=(1.0, 2.0, 4.0), peak=100, **options):
    key = {"what": "forward", "attention": name, "length": length, "options": options}
    cost = {"peak_bytes": peak}
    return {"key": key, "cost": cost, "seconds": seconds and [*seconds]}


def results(*rows, device="CPU"):
    return {"format": FORMAT, "commit": "abc", "device": device, "rows": [*rows]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not there"),
        ("{", "is not valid JSON"),
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
        compare(read_results(path), results(row()))


def test_only_equal_keys_are_compared_by_their_medians():
    ours = results(row(seconds=(1.0, 2.0, 9.0)), row(length=8), row("none", peak=5))
    theirs = results(row(seconds=(8.0, 8.0, 1.0), peak=50), row("none", seconds=None))
    _, first, second = compare(ours, theirs)
    assert "linear" in first
    assert "time  0.250 memory  2.000" in first
    assert "none" in second
    assert "time      — memory  0.050" in second


def test_an_option_that_came_later_is_at_its_default():
    old, new = row("nystrom-8"), row("nystrom-8", inverse="iterative")
    other = row("nystrom-8", inverse="exact")
    assert len(compare(results(new), results(old))) == 2
    with pytest.raises(ConfigError, match="no row of the same sizes in common"):
        compare(results(other), results(old))


def test_other_devices_are_compared_only_when_asked():
    ours, theirs = results(row()), results(row(), device="GPU")
    with pytest.raises(ConfigError, match="'CPU' and 'GPU'; --any_device"):
        compare(ours, theirs)
    assert len(compare(ours, theirs, any_device=True)) == 2
