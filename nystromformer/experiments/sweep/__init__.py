"""Sweeps: many runs of a grid or a plan, on this machine or on SLURM."""
