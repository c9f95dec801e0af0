"""The files that training writes in a workdir. Reading them needs no JAX."""

METRICS_FILE = "metrics.jsonl"
