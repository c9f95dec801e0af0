"""The figures of the study: medians and quartiles over sequences; pictures of heads."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nystromformer.experiments.plotting import new_figure
from nystromformer.experiments.study.errors import Pictures

Frame = Any  # of pandas, whose own types say too little
PAGE = 5.4  # inches of a row of pictures
FONT = 8  # points


def draw_methods(rows: Frame) -> Figure:
    """The error against the number of landmarks or features: a line for each method."""
    figure, panels = _panels(rows)
    counts = sorted(rows["num_landmarks"].unique())
    for axes, chosen in panels:
        for method, part in chosen.groupby("method", sort=False):
            _draw_medians(axes, part, "num_landmarks", method)
        axes.set(xscale="log", yscale="log", xlabel="landmarks, or features")
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.xaxis.set_minor_locator(NullLocator())
    figure.axes[0].legend(frameon=False, fontsize=FONT)
    return figure


def draw_iterations(rows: Frame) -> Figure:
    """The error against the iterations of the inverse; dashed with the exact one."""
    figure, panels = _panels(rows)
    for axes, chosen in panels:
        for i, (count, part) in enumerate(chosen.groupby("num_landmarks")):
            label, exact = f"{count} landmarks", part["pinv"] == "exact"
            _draw_medians(axes, part[~exact], "num_pinv_iters", label, f"C{i}")
            error = part["error"][exact].median()
            axes.axhline(error, color=f"C{i}", linestyle="--")
        axes.set(yscale="log", xlabel="iterations")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.plot([], [], color="grey", linestyle="--", label="exact inverse")
    figure.axes[0].legend(frameon=False, fontsize=FONT)
    return figure


def draw_spectrum(rows: Frame) -> Figure:
    """Cumulative normalised singular values of S, as Linformer's Fig. 1, by head."""
    figure, ranks = new_figure(), np.linspace(0, 1, 65)
    [axes] = figure.axes
    for (layer, head), part in rows.groupby(["layer", "head"]):
        curves = []
        for _, values in part.groupby("example")["singular_value"]:
            sums = np.cumsum([0.0, *values])
            at = np.linspace(0, 1, len(sums))
            curves.append(np.interp(ranks, at, sums / sums[-1]))
        style = {"color": f"C{layer}", "linestyle": ("-", "--", ":", "-.")[head % 4]}
        style["label"] = f"layer {layer}, head {head}"
        axes.plot(ranks, np.median(curves, axis=0), **style)
    axes.set(xlabel="rank / n", ylabel="cumulative normalised singular value")
    if len(axes.lines) <= 12:
        axes.legend(frameon=False, fontsize=FONT)
    return figure


def draw_pictures(pictures: Pictures, *, own_colors: bool = False) -> Figure:
    """A row for each head: the first matrix, and the others with their errors to it.

    pictures: (layer, head) -> title -> matrix.
    own_colors: each matrix in colours of its own, with their range instead of its
      error, for matrices that differ by orders of magnitude.
    """
    rows, columns = len(pictures), len(next(iter(pictures.values())))
    cell, figure = PAGE / columns, new_figure(rows, columns)
    figure.set_size_inches(cell * columns, (cell + 0.15) * rows + 0.3)
    grid = np.array(figure.axes, object).reshape(rows, columns)
    for line, ((layer, head), titled) in zip(grid, pictures.items(), strict=True):
        exact = next(iter(titled.values()))
        low, high = np.quantile(exact, (0.005, 0.995))
        style = {"cmap": "viridis", "vmin": min(low, 0), "vmax": high}
        for axes, (title, matrix) in zip(line, titled.items(), strict=True):
            error = np.linalg.norm(matrix - exact) / np.linalg.norm(exact)
            text = "" if matrix is exact else f"{error:.2g}"
            if own_colors:
                high = np.quantile(abs(matrix), 0.995)
                style = {"cmap": "RdBu", "vmin": -high, "vmax": high}
                text = f"± {high:.1g}"
            image = axes.imshow(matrix, interpolation="nearest", **style)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            if axes in grid[0]:
                axes.set_title(title.replace(" ", "\n"), fontsize=FONT)
            axes.set_xlabel(text, fontsize=FONT)
        line[0].set_ylabel(f"layer {layer}\nhead {head}", fontsize=FONT)
        if not own_colors:
            bar = figure.colorbar(image, ax=[*line], extend="both", aspect=10)
            bar.ax.tick_params(labelsize=FONT)
            bar.locator = MaxNLocator(2)
    return figure


def _panels(rows: Frame) -> tuple[Figure, list[tuple[Axes, Frame]]]:
    """A row of panels for each layer, a column for each head, with their rows."""
    places = rows.groupby(["layer", "head"])
    figure = new_figure(rows["layer"].nunique(), rows["head"].nunique())
    for axes, (layer, head) in zip(figure.axes, places.groups, strict=True):
        axes.set(title=f"layer {layer}, head {head}", ylabel="relative error")
    return figure, [*zip(figure.axes, (part for _, part in places), strict=True)]


def _draw_medians(
    axes: Axes, rows: Frame, x: str, label: str, color: Any = None
) -> None:
    """The error against x."""
    lower, median, upper = (
        rows.groupby(x)["error"].quantile(q) for q in (0.25, 0.5, 0.75)
    )
    [line] = axes.plot(median, "o-", markersize=4, label=label, color=color)
    axes.fill_between(median.index, lower, upper, alpha=0.2, color=line.get_color())
