"""What a run remembers beside its arrays."""

import dataclasses
import math
from typing import Any


@dataclasses.dataclass
class RunState:
    """The JSON of a checkpoint.

    Attributes:
      wall_seconds: the time of training, in all sessions together.
      evaluated: the last step at which validation was measured.
      best_step: the step with the best weights, the first of equals.
      best_value: the selected metric of these weights, on validation.
      compiled_bytes: the bytes that the compiled training step holds at once.
      sessions: the step at which each session began, and by which program.
      init_from_sha256: the sha256 of the weights with which the run began, if they are
        those of another run.
      data_sha256: split -> sha256 of its data.
    """

    wall_seconds: float = 0.0
    evaluated: int = -1
    best_step: int | None = None
    best_value: float | None = None
    compiled_bytes: int | None = None
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    init_from_sha256: str | None = None
    data_sha256: dict[str, str] | None = None

    def is_improved_by(self, value: float, higher_is_better: bool) -> bool:
        """Whether this value of the selected metric is better than all before."""
        if not math.isfinite(value):
            return False  # no later value would be better than a NaN
        if self.best_value is None:
            return True
        if higher_is_better:
            return value > self.best_value
        return value < self.best_value
