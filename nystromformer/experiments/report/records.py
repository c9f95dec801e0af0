"""The records of runs: read from workdirs and reports, written by reports.

A record is what a run has left behind: {"run": its name, "config": config.json,
"result": result.json or None, "curve": the lines of metrics.jsonl}. That of a run
without a result also has "sessions", by which commits and on which devices it was
trained so far, if it has a checkpoint; and "failed", why, if it has failed. A report
keeps the records of its runs in two files, of which git shows what changes, and which
`pandas.read_json(file, lines=True)` reads.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.errors import ConfigError
from nystromformer.run_files import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    FAILURE_FILE,
    METRICS_FILE,
    PLAN_FILE,
    complete_lines,
    has_imported_weights,
    parse_json,
    read_json,
    read_result,
    write_text,
)

RUNS_FILE = "runs.jsonl"  # a line for each run: the record without its curve
CURVES_FILE = "curves.jsonl"  # a line for each line of metrics.jsonl, and its run

Record = dict[str, Any]


def read_records(folders: Iterable[Path]) -> list[Record]:
    """Reads the records of all runs in these folders and below, sorted by name.

    The runs that a sweep has planned there are among them, begun or not. A run of
    RUNS_FILE has the name that it has there, behind the folders between; a workdir is
    named by its path from the folder on, as in "quick/listops-nystrom-seed0". A workdir
    takes the place of a run of RUNS_FILE that has the same name.

    Raises:
      ConfigError: for a folder without runs, for two runs of one name, and for a
        damaged file.
    """
    packed: dict[str, Record] = {}
    trained: dict[str, Record] = {}
    workdirs: set[Path] = set()
    for folder in folders:
        packed_below = _read_packed(folder)
        configs = _find_configs(folder)
        if not packed_below and not configs:
            raise ConfigError(
                f"no runs in {folder}: no trained or planned one there or below, and "
                f"none in a {RUNS_FILE}"
            )
        _add_records(packed, packed_below)

        new_workdirs = configs.keys() - workdirs
        records_below = []
        for workdir in sorted(new_workdirs):
            name = workdir.relative_to(folder.resolve().parent).as_posix()
            records_below.append(_read_workdir(workdir, name, configs[workdir]))
        _add_records(trained, records_below)
        workdirs |= new_workdirs

    records = {**packed, **trained}
    return [records[name] for name in sorted(records)]


def _add_records(records: dict[str, Record], new_records: Iterable[Record]) -> None:
    """Adds records by their names. Raises ConfigError if a name is there already."""
    for record in new_records:
        name = record["run"]
        if name in records:
            raise ConfigError(
                f"two runs are named {name}; report on them apart, or rename one: its "
                f"folder, or its lines in {RUNS_FILE} and {CURVES_FILE}"
            )
        records[name] = record


def _parse_lines(file: Path, keys: Sequence[str]) -> list[dict[str, Any]]:
    """The objects of a file of a report, one a line, each of which has these keys.

    A line ends in a newline and in no other character.
    """
    objects = []
    for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
        if not line:
            continue
        content = parse_json(line, file)
        missing = [key for key in keys if key not in content]
        if missing:
            raise ConfigError(
                f"{file} is not a file of a report: line {number} lacks "
                f"{', '.join(missing)}; name folders of runs or reports"
            )
        objects.append(content)
    return objects


def _find_files(folder: Path, name: str) -> list[Path]:
    """The files of this name in and below a folder, sorted.

    A folder that a running training deletes meanwhile has none: `Path.rglob` of Python
    3.11 raises there.
    """
    return sorted(
        Path(path, name) for path, _, names in os.walk(folder) if name in names
    )


def _read_packed(folder: Path) -> list[Record]:
    """The records in every RUNS_FILE in and below a folder."""
    records = []
    for file in _find_files(folder, RUNS_FILE):
        curves: dict[str, list[Any]] = {}
        curves_file = file.with_name(CURVES_FILE)
        if curves_file.exists():
            for row in _parse_lines(curves_file, ["run"]):
                curves.setdefault(row.pop("run"), []).append(row)

        path = file.parent.relative_to(folder)
        for record in _parse_lines(file, ["run", "config", "result"]):
            record["curve"] = curves.get(record["run"], [])
            record["run"] = (path / record["run"]).as_posix()
            records.append(record)
    return records


def _find_configs(folder: Path) -> dict[Path, Any]:
    """Finds the absolute workdir and the config of each run in or below a folder.

    Runs that a sweep has planned and not begun are among them. Imported weights are
    not: they have a config and were not trained here.
    """
    configs = {}
    for plan in _find_files(folder.resolve(), PLAN_FILE):
        for name, config in read_json(plan).items():
            configs[plan.parent / name] = config
    for file in _find_files(folder.resolve(), CONFIG_FILE):
        workdir = file.parent
        if not has_imported_weights(workdir):
            configs[workdir] = read_json(file)
    return configs


def _read_workdir(workdir: Path, name: str, config: Mapping[str, Any]) -> Record:
    """The record of a run, which may not have begun.

    Raises:
      ConfigError: if the config or the result is not that of a run.
    """
    if "objective" not in config:
        raise ConfigError(
            f"{workdir}/{CONFIG_FILE} is not the config of a run: it has no objective; "
            "name folders of runs of scripts/train.py"
        )
    result = read_result(workdir)
    metrics_file = workdir / METRICS_FILE
    curve = []
    if metrics_file.exists():
        lines = complete_lines(metrics_file)
        curve = [parse_json(line, metrics_file) for line in lines]
    record = {"run": name, "config": config, "result": result, "curve": curve}
    if result is not None:
        return record

    sessions = _read_sessions(workdir)
    if sessions is not None:
        record["sessions"] = sessions
    failure_file = workdir / FAILURE_FILE
    if failure_file.exists():
        record["failed"] = " ".join(failure_file.read_text("utf-8").split())
    return record


def _read_sessions(workdir: Path) -> list[dict[str, Any]] | None:
    """The sessions that the newest checkpoint of a run tells of.

    None without a checkpoint, and where it cannot be read, as while it is written. The
    files are those of orbax, which a report does not load.
    """
    folders = (workdir / CHECKPOINTS_FOLDER).glob("*")
    of_steps = [folder for folder in folders if folder.name.isdigit()]
    for folder in sorted(of_steps, key=lambda folder: int(folder.name), reverse=True):
        try:
            text = (folder / "meta/metadata").read_text("utf-8")
            return json.loads(text)["meta"]["sessions"]
        except (OSError, ValueError, LookupError):
            continue
    return None


def write_records(records: Iterable[Record], folder: Path) -> None:
    """Writes RUNS_FILE and CURVES_FILE, from which `read_records` reads the same."""
    run_lines = []
    curve_lines = []
    for record in records:
        values = {key: value for key, value in record.items() if key != "curve"}
        run_lines.append(json.dumps(values, ensure_ascii=False) + "\n")
        for row in record["curve"]:
            point = {"run": record["run"], **row}
            curve_lines.append(json.dumps(point, ensure_ascii=False) + "\n")
    write_text(folder / RUNS_FILE, "".join(run_lines))
    write_text(folder / CURVES_FILE, "".join(curve_lines))
