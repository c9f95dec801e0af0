"""Tasks over sequences of tokens as numpy arrays, for any framework.

They are those of the Long Range Arena, Recall, GLUE, plain text to pre-train on, and a
user's own texts and pictures.
"""

# The tasks of the benchmark's table, in its order.
LRA = ("listops", "text", "retrieval", "image", "pathfinder")
