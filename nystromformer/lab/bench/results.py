"""benchmark.json: rows and where they come from; two of them side by side."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.base import Attention
from nystromformer.config import ConfigError
from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.workdir import read_json

FILE = "benchmark.json"
FORMAT = "nystromformer benchmark 1"
FIELDS = {"commit", "device", "versions", "rows"}
ROW_FIELDS = {"key", "cost", "stopped", "seconds", "measured_bytes", "matmul_share"}


def read_results(path: Path) -> dict[str, Any]:
    """Such a file, or the one in such a folder.

    Raises:
      ConfigError: it is not there, or of another program.
    """
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{path} is not there; scripts/benchmark.py writes it")
    results = read_json(path)
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ConfigError(f"{path} is no {FILE} of scripts/benchmark.py")
    rows = results["rows"] if results.keys() >= FIELDS else None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and row.keys() >= ROW_FIELDS for row in rows
    ):
        raise ConfigError(f"{path} is damaged: measure again")
    return results


def compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], *, any_device: bool = False
) -> list[str]:
    """Ratios ours ÷ theirs of the rows of equal key, as lines of text.

    Args:
      ours, theirs: as `read_results` gives them.
      any_device: compare what was measured on different devices too.

    Raises:
      ConfigError: different devices, or no key in common.
    """
    if ours["device"] != theirs["device"] and not any_device:
        raise ConfigError(
            f"measured on different devices: {ours['device']!r} and "
            f"{theirs['device']!r}; --any_device compares them all the same"
        )
    lines = [f"time and memory of {ours['commit']} ÷ those of {theirs['commit']}"]
    for row in ours["rows"]:
        key = row["key"]
        for other in (x for x in theirs["rows"] if _whole(x["key"]) == _whole(key)):
            where = " ".join(str(key[x]) for x in ("task", "length") if x in key)
            pair = row, other
            time = _ratio(*(x["seconds"] and quartiles(x["seconds"])[1] for x in pair))
            memory = _ratio(*(x["cost"] and x["cost"]["peak_bytes"] for x in pair))
            lines.append(
                f"{key['what']:17} {key['attention']:16} {where:>14} "
                f"time {time} memory {memory}"
            )
    if len(lines) == 1:
        raise ConfigError("the two files have no row of the same sizes in common")
    return lines


def _whole(key: Mapping[str, Any]) -> dict[str, Any]:
    """A key with the options that its attention has got since, at their defaults."""
    label = key["attention"].removeprefix("hf-").removeprefix("torch-")
    attention = ATTENTIONS.get(re.split("[- ]", label)[0])
    return {**key, "options": {**(attention or Attention).defaults, **key["options"]}}


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:6.3f}" if ours and theirs else "     —"
