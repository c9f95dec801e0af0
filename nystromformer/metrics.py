"""What the name of a metric says: whether it is a rate, its split, how it is shown."""

from collections.abc import Mapping
from typing import Any

# The last words of the names of metrics from 0 to 1, as in mlm_accuracy.
RATES = {"accuracy", "f1", "precision", "recall"}


def is_rate(metric: str) -> bool:
    """Returns whether a metric is shown in per cent."""
    return metric.rpartition("_")[2] in RATES


def is_higher_better(metric: str) -> bool:
    """Returns whether a larger value is better, which it is but for losses."""
    return not metric.endswith("loss")


def split_of_metric(metric: str, result: Mapping[str, Any]) -> str:
    """Returns the test split on which a metric of result.json was measured.

    "mismatched_accuracy" is of "test_mismatched" where a result has this split.
    """
    split = f"test_{metric.rpartition('_')[0]}"
    return split if f"{split}_examples" in result else "test"


def format_metric(metric: str, value: float) -> str:
    """Returns a value as in "97.31%" for a rate, and as in "0.1234" for others."""
    return f"{value:.2%}" if is_rate(metric) else f"{value:.4f}"
