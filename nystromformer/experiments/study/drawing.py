"""The figures of the study: medians and quartiles over sequences; pictures of heads."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nystromformer.experiments.plotting import line_style, new_figure
from nystromformer.experiments.study.errors import Pictures

Frame = Any  # of pandas, whose own types say too little
PAGE = 5.4  # inches of a row of pictures
FONT = 8  # points


def draw_errors(rows: Frame, x: str) -> Figure:
    """The error against the column x: a panel for each head, a line for each method.

    Dashed: the error of the method's rows without an x.
    """
    places = rows.groupby(["layer", "head"])
    figure = new_figure(rows["layer"].nunique(), rows["head"].nunique())
    ticks = sorted(rows[x].dropna().astype(int).unique())
    for axes, ((layer, head), chosen) in zip(figure.axes, places, strict=True):
        for i, (method, part) in enumerate(chosen.groupby("method", sort=False)):
            errors, color = part.groupby(x)["error"], f"C{i}"
            median = errors.median()
            axes.plot(median, "o-", markersize=4, label=method, color=color)
            quartiles = errors.quantile(0.25), errors.quantile(0.75)
            axes.fill_between(median.index, *quartiles, alpha=0.2, color=color)
            without = part["error"][part[x].isna()]
            if len(without):
                axes.axhline(without.median(), color=color, linestyle="--")
        axes.set(title=f"layer {layer}, head {head}", ylabel="relative error")
        axes.set(xscale="log", yscale="log", xlabel=x)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
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
        style = line_style(layer + 10 * head)
        label = f"layer {layer}, head {head}"
        axes.plot(ranks, np.median(curves, axis=0), label=label, **style)
    axes.set(xlabel="rank / n", ylabel="cumulative normalised singular value")
    if len(axes.lines) <= 12:
        axes.legend(frameon=False, fontsize=FONT)
    return figure


def draw_pictures(pictures: Pictures) -> Figure:
    """A row for each head: the first matrix, and the others with their errors to it.

    pictures: (layer, head) -> title -> matrix.
    """
    rows, columns = len(pictures), len(next(iter(pictures.values())))
    cell, figure = PAGE / columns, new_figure(rows, columns)
    figure.set_size_inches(cell * columns, (cell + 0.15) * rows + 0.3)
    grid = np.array(figure.axes, object).reshape(rows, columns)
    for line, ((layer, head), titled) in zip(grid, pictures.items(), strict=True):
        exact = next(iter(titled.values()))
        low, high = np.quantile(exact, (0.005, 0.995))
        for axes, (title, matrix) in zip(line, titled.items(), strict=True):
            error = np.linalg.norm(matrix - exact) / np.linalg.norm(exact)
            image = axes.imshow(
                matrix, interpolation="nearest", vmin=min(low, 0), vmax=high
            )
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            if axes in grid[0]:
                axes.set_title(title.replace(" ", "\n"), fontsize=FONT)
            axes.set_xlabel("" if matrix is exact else f"{error:.2g}", fontsize=FONT)
        line[0].set_ylabel(f"layer {layer}\nhead {head}", fontsize=FONT)
        bar = figure.colorbar(image, ax=[*line], extend="both", aspect=10)
        bar.ax.tick_params(labelsize=FONT)
        bar.locator = MaxNLocator(2)
    return figure
