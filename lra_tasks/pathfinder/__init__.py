"""Pathfinder and Path-X: the tasks, the drawing of pictures, the released files."""
