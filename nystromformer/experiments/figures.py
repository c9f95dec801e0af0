"""The former place of plotting.py, until the report takes it from there."""

from nystromformer.experiments.plotting import HEIGHT, new_figure, save_figure

__all__ = ["HEIGHT", "new_figure", "save_figure"]
