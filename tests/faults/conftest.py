"""The numbers of a run that no fault touched."""

import json
from pathlib import Path
from typing import Any

import pytest

TIMES = {"wall_seconds", "examples_per_second", "files_sha256", "sha256"}


def numbers(workdir: Path) -> dict[str, Any]:
    """All that a finished run has found, and its metrics; what clocks say aside."""
    result = json.loads((workdir / "result.json").read_text())
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    return {
        "result": {key: x for key, x in result.items() if key not in TIMES},
        "metrics": [
            {key: x for key, x in json.loads(line).items() if key not in TIMES}
            for line in lines
        ],
    }


@pytest.fixture(scope="session")
def expected(finished) -> dict[str, Any]:
    """The numbers of a run that nothing interrupted."""
    return numbers(finished[0])
