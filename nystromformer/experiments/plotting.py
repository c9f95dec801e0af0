"""The common style of all figures, written as PNG and SVG."""

import math
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

WIDTH = 6.4  # inches, of one panel
HEIGHT = 4.0
LEGEND_LINE = 0.22  # inches
LETTERS_IN_A_LEGEND_LINE = 60  # as wide as a panel
STROKES = ("-", "--", ":", "-.")
# Paul Tol's colours "muted", which the colour-blind can tell apart, black and a grey.
COLOR_OF_ATTENTION = {
    "nystrom": "#CC6677",
    "softmax": "#000000",
    "bigbird": "#332288",
    "efficient": "#DDCC77",
    "linear": "#117733",
    "linformer": "#88CCEE",
    "longformer": "#882255",
    "performer": "#44AA99",
    "reformer": "#999933",
    "identity": "#777777",
}
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


def line_style(index: int) -> dict[str, Any]:
    """Ten colours, then the same with a different stroke."""
    stroke = STROKES[index // 10 % len(STROKES)]
    return {"color": f"C{index % 10}", "linestyle": stroke}


def attention_style(attention: str, index: int = 0) -> dict[str, Any]:
    """The colour of an attention, the same in all figures, and a stroke for its row.

    Args:
      attention: its name; one of a user's own is purple.
      index: the number of the row among those of the attention.
    """
    color = COLOR_OF_ATTENTION.get(attention, "#AA4499")
    return {"color": color, "linestyle": STROKES[index % len(STROKES)]}


def add_legend(figure: Figure, num_columns: int = 1) -> None:
    """Adds one legend of all panels below them; the panels keep their height.

    Args:
      figure: a figure as `new_figure` makes it.
      num_columns: the columns of the legend, at most the panels side by side.
    """
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = [textwrap.fill(label, LETTERS_IN_A_LEGEND_LINE) for label in handles]
    num_rows = math.ceil(len(labels) / num_columns)
    columns = [labels[i : i + num_rows] for i in range(0, len(labels), num_rows or 1)]
    num_lines = max(
        ("\n".join(column).count("\n") + 1 for column in columns), default=0
    )
    figure.set_figheight(HEIGHT + LEGEND_LINE * num_lines)
    figure.legend(
        list(handles.values()),
        labels,
        loc="outside lower left",
        ncols=num_columns,
        frameon=False,
    )


def save_figure(figure: Figure, path: Path) -> list[Path]:
    """Writes PATH.png and PATH.svg, and returns both."""
    png = Path(f"{path}.png")
    svg = Path(f"{path}.svg")
    with matplotlib.rc_context(STYLE):
        figure.savefig(png, dpi=150, metadata={"Software": None})
    save_svg(figure, svg)
    return [png, svg]


def save_svg(figure: Figure, path: Path) -> None:
    """Writes a figure without the date, so that the same one gives the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None})


def set_value_ticks(axes: Any) -> None:
    """Adds ticks between the powers of ten to a y axis that has few of them."""
    low, high = axes.get_ylim()
    if high > 1000 * low:
        return
    is_narrow = high < 10 * low
    locator = MaxNLocator(5) if is_narrow else LogLocator(subs=(1, 2, 5))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter("{x:g}")
