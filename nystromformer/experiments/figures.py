"""The common style of all figures; writes them as PNG and SVG."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

WIDTH, HEIGHT = 6.4, 4.0  # inches, of one panel
STYLE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "nystromformer",  # the same figure gives the same bytes
}


def new_figure(rows: int = 1, columns: int = 1) -> Figure:
    """A figure of panels of the common size, outside pyplot's global state."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(columns * WIDTH, rows * HEIGHT))
        figure.subplots(rows, columns, squeeze=False)
    return figure


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes path.png and path.svg, and returns both."""
    written = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context(STYLE):
        figure.savefig(written[0], dpi=150, metadata={"Software": None})
        figure.savefig(written[1], metadata={"Date": None})
    return written
