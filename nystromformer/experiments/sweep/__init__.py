"""The runs of a sweep, and how they are started."""
