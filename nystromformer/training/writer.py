"""What a run leaves behind: metrics.jsonl, TensorBoard events, result.json."""

import json
import os
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class MetricsWriter:
    """Appends to metrics.jsonl, one object a line, and to TensorBoard's event files.

    Args:
      workdir: an existing folder.
      num_bytes: how much of metrics.jsonl belongs to the state that the run goes on
        from; what a killed run wrote after it is cut off and written again.
      step: the step of that state.
    """

    def __init__(self, workdir: Path, num_bytes: int = 0, step: int = 0):
        self.file = open(workdir / "metrics.jsonl", "ab")  # noqa: SIM115
        if self.file.tell() > num_bytes:
            self.file.truncate(num_bytes)
        self.events = SummaryWriter(str(workdir / "events"), purge_step=step)

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """One line: step, split and the values."""
        line = json.dumps({"step": step, "split": split, **values}) + "\n"
        self.file.write(line.encode())
        self.file.flush()
        for name, value in values.items():
            self.events.add_scalar(f"{split}/{name}", value, step)

    def num_bytes(self) -> int:
        """The size of metrics.jsonl up to now."""
        return self.file.tell()

    def close(self) -> None:
        self.file.close()
        self.events.close()
