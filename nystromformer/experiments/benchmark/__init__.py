"""Time, memory and operations, measured side by side."""
