"""What a run remembers beside its arrays."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class RunState:
    """The JSON of a checkpoint."""

    wall_seconds: float = 0.0
    train_seconds: float = 0.0  # without the first chunk, which is mostly compiling
    train_examples: int = 0
    evaluated: int = -1  # the last step at which validation was measured
    best_step: int | None = None  # the first of equals
    best_value: float | None = None  # of the selected metric, on validation
    compiled_bytes: int | None = None  # what the compiled train step holds at once
    peak_bytes: int | None = None  # the most that a device held, if it counts
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    init_from_sha256: str | None = None  # of another run's weights
    data_sha256: dict[str, str] | None = None  # of each split

    def add_validation(self, step: int, value: float, higher_is_better: bool) -> bool:
        """Notes the selected metric of a step; says whether it is the best so far."""
        self.evaluated = step
        sign = 1 if higher_is_better else -1
        better = self.best_value is None or sign * value > sign * self.best_value
        if better:
            self.best_step, self.best_value = step, value
        return better

    def summary(self, metric: str, test: dict[str, float]) -> dict[str, Any]:
        """For result.json; `test` holds all metrics of the test split."""
        rate = self.train_examples / self.train_seconds if self.train_seconds else None
        names = "best_step", "wall_seconds", "init_from_sha256", "data_sha256"
        names += "compiled_bytes", "peak_bytes"
        tested = {f"test_{name}": value for name, value in test.items()}
        return {
            "metric": metric,
            f"validation_{metric}": self.best_value,
            **{**tested, "test_examples": int(test["examples"])},
            "examples_per_second": rate,
            **{name: getattr(self, name) for name in names},
        }
