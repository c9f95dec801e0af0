"""Runs, sweeps, reports, benchmarks and studies: tasks and models together."""
