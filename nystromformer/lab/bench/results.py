"""benchmark.json: rows and where they come from; two of them side by side."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.base import Attention
from nystromformer.config import ConfigError
from nystromformer.lab.bench.summary import peak_bytes, peer_of, seconds
from nystromformer.lab.workdir import read_json

FILE = "benchmark.json"
FORMAT = "nystromformer benchmark 1"


def read_results(path: Path) -> dict[str, Any]:
    """Such a file, or the one in such a folder; ConfigError where it is none."""
    path = path / FILE if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{path} is not there; scripts/benchmark.py writes it")
    results = read_json(path)
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ConfigError(f"{path} is no {FILE} of scripts/benchmark.py")
    return results


def compare(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], *, any_device: bool = False
) -> list[str]:
    """Ratios ours ÷ theirs of the rows of equal key, as lines of text.

    Args:
      ours, theirs: as `read_results` gives them.
      any_device: compare what was measured on different devices too.

    Raises:
      ConfigError: different devices, no key in common, or a damaged file.
    """
    try:
        if ours["device"] != theirs["device"] and not any_device:
            raise ConfigError(
                f"measured on different devices: {ours['device']!r} and "
                f"{theirs['device']!r}; --any_device compares them all the same"
            )
        lines = [
            _line(row, other)
            for row in ours["rows"]
            for other in theirs["rows"]
            if _whole(row["key"]) == _whole(other["key"])
        ]
        head = f"time and memory of {ours['commit']} ÷ those of {theirs['commit']}"
    except (KeyError, TypeError) as error:
        raise ConfigError(f"a {FILE} is damaged: measure again") from error
    if not lines:
        raise ConfigError("the two files have no row of the same sizes in common")
    return [head, *lines]


def _line(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    key, ratios = row["key"], []
    for value in (seconds, peak_bytes):
        ours, theirs = value(row), value(other)
        ratios.append(f"{ours / theirs:6.3f}" if ours and theirs else "     —")
    where = " ".join(str(key[x]) for x in ("task", "length") if x in key)
    name = f"{key['what']:17} {key['attention']:16} {where:>14}"
    return f"{name} time {ratios[0]} memory {ratios[1]}"


def _whole(key: Mapping[str, Any]) -> dict[str, Any]:
    """A key with the options that its attention has got since, at their defaults."""
    name = re.split("[- ]", peer_of(key["attention"])[1])[0]
    defaults = ATTENTIONS.get(name, Attention).defaults
    return {**key, "options": {**defaults, **key["options"]}}
