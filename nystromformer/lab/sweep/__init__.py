"""Many runs: a grid or a plan, here or on SLURM."""
