"""What a run remembers besides its arrays."""

import dataclasses
from typing import Any

from nystromformer.training.arrays import CheckpointError


@dataclasses.dataclass
class Record:
    """What a run remembers beside its arrays; JSON in every checkpoint.

    evaluated: the last step at which validation was measured.
    best_step, best_value: where the selected metric was best, the first of equals.
    compiled_bytes: what the compiled train step holds at once.
    peak_bytes: the most that the device held, where it counts.
    sessions: what it ran on and with, and from which step.
    init_from_sha256: of the weights that it began with, if they are another run's.
    data_sha256: of each split that it is trained on.
    """

    wall_seconds: float = 0.0
    train_seconds: float = 0.0
    train_examples: int = 0
    evaluated: int = -1
    best_step: int | None = None
    best_value: float | None = None
    compiled_bytes: int | None = None
    peak_bytes: int | None = None
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    init_from_sha256: str | None = None
    data_sha256: dict[str, str] | None = None  # earlier versions noted none

    def trained_on(self, data: dict[str, str]) -> None:
        """Notes the sha256 of each split; CheckpointError if it had other ones."""
        noted = self.data_sha256 or data
        if other := [name for name in data if noted[name] != data[name]]:
            raise CheckpointError(
                f"this run was trained on other data ({', '.join(other)}): correct "
                "source_dir or data_dir, or name another workdir"
            )
        self.data_sha256 = data

    def validated(self, step: int, value: float, higher_is_better: bool) -> bool:
        """Notes the selected metric of a step; says whether it is the best so far."""
        self.evaluated = step
        sign = 1 if higher_is_better else -1
        better = self.best_value is None or sign * value > sign * self.best_value
        if better:
            self.best_step, self.best_value = step, value
        return better

    def findings(self, metric: str, test: dict[str, float]) -> dict[str, Any]:
        """For result.json; `test` holds all metrics of the test split."""
        seconds, examples = self.train_seconds, self.train_examples
        return {
            "metric": metric,
            "best_step": self.best_step,
            f"validation_{metric}": self.best_value,
            **{f"test_{name}": value for name, value in test.items()},
            "test_examples": int(test["examples"]),
            "wall_seconds": self.wall_seconds,
            "examples_per_second": examples / seconds if seconds else None,
            "init_from_sha256": self.init_from_sha256,
            "data_sha256": self.data_sha256,
            "compiled_bytes": self.compiled_bytes,
            "peak_bytes": self.peak_bytes,
        }
