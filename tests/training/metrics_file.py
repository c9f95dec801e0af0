"""The metrics that a run has written."""

import json
from pathlib import Path


def rows_of(workdir: Path, split: str | None = None) -> list[dict]:
    """The rows of metrics.jsonl, without the numbers that depend on the clock."""
    rows = []
    for line in (workdir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        row.pop("examples_per_second", None)
        if split in (None, row["split"]):
            rows.append(row)
    return rows
