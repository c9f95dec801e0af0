"""The tasks of the Long Range Arena as numpy arrays, for any framework."""
