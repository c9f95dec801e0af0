"""The common style of all figures, written as PNG and SVG."""

import math
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from PIL import Image

WIDTH = 6.4  # inches, of one panel
HEIGHT = 4.0
LEGEND_LINE = 0.22  # inches
LETTERS_IN_A_LEGEND_LINE = 60  # as wide as a panel
STROKES = ("-", "--", ":", "-.")
STYLE: Any = {
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "svg.hashsalt": "nystromformer",  # the same figure gives the same bytes
}
# An attention has its colour in every picture: Paul Tol's colours "muted", which the
# colour-blind can tell apart, black and a grey.
ATTENTION_COLORS = {
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
LIBRARIES = ("cudnn", "torch", "hf")  # They stand before the names of attentions.
NAME_SIZE = 9  # points, of the names at the ends of lines


def new_figure(rows: int = 1, columns: int = 1) -> Figure:
    """A figure of panels of the common size, outside pyplot's global state."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(columns * WIDTH, rows * HEIGHT))
        figure.subplots(rows, columns, squeeze=False)
    return figure


def attention_style(attention: str, index: int = 0, color: str = "") -> dict[str, Any]:
    """Returns the colour of an attention, the same in all pictures, and a stroke.

    Args:
      attention: a name in ATTENTION_COLORS, or any name with a colour.
      index: the number of the line among those of the attention. From the fifth on
        they are lighter.
      color: that of an attention which is not in the table; purple if it is left out.
    """
    color = ATTENTION_COLORS.get(attention, color or "#AA4499")
    shade, stroke = divmod(index, len(STROKES))
    lightness = 1 - 1 / (1 + 0.6 * shade)
    rgb = np.array(to_rgb(color))
    mixed_with_white = tuple((rgb + (1 - rgb) * lightness).tolist())
    return {"color": mixed_with_white, "linestyle": STROKES[stroke]}


def attention_styles(labels: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the style of each line of a picture that compares attentions.

    Args:
      labels: the labels of all lines, in the order in which they are drawn:
        "torch-softmax" has the colour of softmax, "nystrom-64, fused=true" that of
        nystrom. A label that names no attention of the table has one of its colours
        that this picture does not use.
    """
    attention_of_label = {label: attention_in_label(label) for label in labels}
    # The first of the table are in most pictures, and so are lent last.
    spare_colors = [
        color
        for name, color in reversed(ATTENTION_COLORS.items())
        if name not in attention_of_label.values()
    ]
    color_of_other: dict[str, str] = {}
    num_lines: dict[str, int] = {}
    styles = {}
    for label, attention in attention_of_label.items():
        if attention not in ATTENTION_COLORS and attention not in color_of_other:
            color_of_other[attention] = spare_colors.pop(0) if spare_colors else ""
        index = num_lines.get(attention, 0)
        num_lines[attention] = index + 1
        color = color_of_other.get(attention, "")
        styles[label] = attention_style(attention, index, color)
    return styles


def attention_in_label(label: str) -> str:
    """Returns the attention that a phrase of a label begins with, or else the label.

    "torch-softmax" is softmax in another library; "double softmax" is none of them.
    """
    for phrase in label.split(", "):
        match = re.match(f"(?:(?:{'|'.join(LIBRARIES)})-)?([a-z]+)", phrase)
        if match and match[1] in ATTENTION_COLORS:
            return match[1]
    return label


def name_lines(axes: Axes) -> None:
    """Writes the name of each line beside the panel, at the height of the line's end.

    Names that would overlap are moved apart, and a thin line joins each to its end. The
    scales and limits of the panel must have been set.

    Args:
      axes: a panel whose lines have labels; those with a label of matplotlib's own,
        which begins with "_", are not named.
    """
    lines = [x for x in axes.lines if not str(x.get_label()).startswith("_")]
    axes.autoscale_view()  # matplotlib else sets limits when it draws
    to_panel = axes.transScale + axes.transLimits
    ends = [to_panel.transform(np.asarray(line.get_xydata())[-1]) for line in lines]
    # Beside its title and labels a panel has about three quarters of its place.
    figure: Any = axes.figure
    panel_inches = 0.75 * figure.get_figheight() / figure.axes[0].get_gridspec().nrows
    gap = 1.2 * NAME_SIZE / 72 / panel_inches
    heights = _move_apart([height for _, height in ends], gap)
    for line, (x, y), height in zip(lines, ends, heights, strict=True):
        darker = tuple(0.7 * np.array(to_rgb(line.get_color())))
        axes.annotate(
            str(line.get_label()),
            xy=(x, y),
            xycoords="axes fraction",
            xytext=(1.03, height),
            textcoords="axes fraction",
            fontsize=NAME_SIZE,
            color=darker,
            verticalalignment="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": line.get_color(),
                "relpos": (0, 0.5),
                "shrinkB": 3,
            },
        )


def _move_apart(heights: list[float], gap: float) -> list[float]:
    """Moves heights as little as it takes to have a gap between any two.

    Neighbours that are too near become a group, which keeps its mean.
    """
    order = np.argsort(heights, kind="stable")
    groups: list[list[int]] = []

    def places(group: list[int]) -> np.ndarray:
        mean = np.mean([heights[index] for index in group])
        return mean + gap * (np.arange(len(group)) - (len(group) - 1) / 2)

    for index in order:
        groups.append([int(index)])
        while len(groups) > 1 and places(groups[-1])[0] - places(groups[-2])[-1] < gap:
            last_group = groups.pop()
            groups[-1] += last_group
    moved = list(heights)
    for group in groups:
        for index, height in zip(group, places(group), strict=True):
            moved[index] = float(height)
    return moved


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
    reduce_colors(png)
    save_svg(figure, svg)
    return [png, svg]


def reduce_colors(png: Path) -> None:
    """Writes a picture anew with 256 colours of its own, in about half of the bytes."""
    with Image.open(png) as image:
        colors = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    colors.save(png, optimize=True)


def save_svg(figure: Figure, path: Path) -> None:
    """Writes a figure without the date, so that the same one gives the same bytes."""
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None})


def set_value_ticks(axis: Any) -> None:
    """Writes plain numbers beside a logarithmic axis, several whatever its range.

    Args:
      axis: `axes.xaxis` or `axes.yaxis`, after the lines have been drawn.
    """
    low, high = axis.get_view_interval()
    if high < 10 * low:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    elif high <= 1000 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())
