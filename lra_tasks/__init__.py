"""Tasks over sequences of tokens as numpy arrays, for any framework.

They are those of the Long Range Arena, Recall, GLUE, and a user's own texts.
"""

# The tasks of the benchmark's table, in its order.
LRA = ("listops", "text", "retrieval", "image", "pathfinder")
