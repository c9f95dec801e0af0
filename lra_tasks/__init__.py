"""The tasks of the Long Range Arena as numpy arrays, for any framework."""

# The tasks of the benchmark's table, in its order.
LRA = ("listops", "text", "retrieval", "image", "pathfinder")
