"""How the records of runs are found, kept and replaced."""

import json
import os

import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.report.records import read_records, write_records
from nystromformer.run_files import write_json
from tests.experiments.report.conftest import Runs
from tests.full_disk import full_disk


def test_read_records_leaves_out_imported_weights(runs):
    trained = runs.add("softmax,quick", 0.5)
    (trained / "best").mkdir()
    imported = runs.add("nystrom,quick")
    (imported / "metrics.jsonl").unlink()
    assert list(runs.read()["attention"]) == ["nystrom", "softmax"]
    (imported / "best").mkdir()
    assert list(runs.read()["attention"]) == ["softmax"]


def test_read_records_reads_what_it_has_written(three, tmp_path):
    """A text may have what other programs take for the end of a line."""
    three.add("softmax,quick")
    three.add("linear,quick", 0.5, result={"command": "python 'a\u2028b'"})
    records = read_records([three.folder])
    packed = tmp_path / "packed"
    packed.mkdir()
    write_records(records, packed)
    assert read_records([packed]) == records
    config = json.loads((three.folder / "00/config.json").read_text())
    lines = (packed / "runs.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["config"] == config
    # Further up the names have the folders between.
    assert read_records([tmp_path / "packed/.."])[0]["run"] == "packed/runs/00"


def test_write_records_to_a_full_disk_leaves_those_of_before(three, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    records = read_records([three.folder])
    write_records(records, packed)
    new_records = [*records, {"run": "new", "failed": "x" * 60_000, "curve": []}]
    with full_disk(), pytest.raises(OSError, match="File too large"):
        write_records(new_records, packed)
    assert read_records([packed]) == records


def test_read_records_takes_a_workdir_in_place_of_its_older_record(three, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    write_records(read_records([three.folder]), packed)
    result = {"metric": "accuracy", "test_accuracy": 0.1}
    write_json(three.folder / "00/result.json", result)
    three.add("linear,quick")
    for folders in ([packed, three.folder], [three.folder, packed]):
        records = {record["run"]: record for record in read_records(folders)}
        assert len(records) == 4
        assert records["runs/00"]["result"] == result


def test_read_records_counts_a_run_once_that_two_folders_have(three):
    assert len(read_records([three.folder, three.folder / "00"])) == 3


def test_read_records_refuses_two_runs_of_one_name(runs, tmp_path):
    runs.add("nystrom,quick")
    other = Runs(tmp_path / "other/runs")
    other.add("linear,quick")
    with pytest.raises(ConfigError, match="two runs are named runs/00; "):
        read_records([runs.folder, other.folder])


def test_read_records_passes_over_a_folder_that_a_run_has_just_deleted(
    three, monkeypatch
):
    checkpoints = three.folder / "01" / "checkpoints"
    checkpoints.mkdir()
    scandir = os.scandir

    def delete_and_scan(path):
        if str(path) == str(checkpoints):
            checkpoints.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", delete_and_scan)
    assert len(read_records([three.folder])) == 3
    assert not checkpoints.exists()


@pytest.mark.parametrize("content", [b'{"step": 5\n', b"null\n", b'{"\xc3\n'])
@pytest.mark.parametrize("name", ["config.json", "result.json", "metrics.jsonl"])
def test_read_records_names_a_damaged_file(three, name, content):
    (three.folder / "01" / name).write_bytes(content)
    with pytest.raises(ConfigError, match=f"/01/{name} cannot be used, it is cut "):
        read_records([three.folder])


@pytest.mark.parametrize(
    ("name", "missing"),
    [("runs.jsonl", "run, config, result"), ("curves.jsonl", "run")],
)
def test_read_records_names_a_damaged_file_of_a_report(three, tmp_path, name, missing):
    packed = tmp_path / "packed"
    packed.mkdir()
    write_records(read_records([three.folder]), packed)
    (packed / name).write_bytes('{"run": "é'.encode()[:-1])
    with pytest.raises(ConfigError, match=rf"/packed/{name} cannot be used, it is cut"):
        read_records([packed])
    (packed / name).write_text('{"step": 5}\n')
    message = f"/packed/{name} is not a file of a report: line 1 lacks {missing}; name"
    with pytest.raises(ConfigError, match=message):
        read_records([packed])


def test_read_records_refuses_a_result_without_a_score(three):
    (three.folder / "01" / "result.json").write_text('{"metric": "accuracy"}')
    with pytest.raises(ConfigError, match=r"/01/result\.json is not the result of a"):
        read_records([three.folder])


def test_read_records_refuses_folders_without_runs(tmp_path):
    (tmp_path / "runs.jsonl").write_text("")
    with pytest.raises(ConfigError, match=rf"no runs in {tmp_path}: .* none in a runs"):
        read_records([tmp_path])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match=r"config\.json is not the config of a"):
        read_records([tmp_path])
