"""How the metrics of a run are shown, by their names."""

RATES = {"accuracy", "f1", "precision", "recall"}  # the last words of their names


def is_rate(metric: str) -> bool:
    """Whether a metric is shown in percent, as mlm_accuracy is."""
    return metric.rpartition("_")[2] in RATES


def format_metric(metric: str, value: float) -> str:
    return f"{value:.2%}" if is_rate(metric) else f"{value:.4f}"
