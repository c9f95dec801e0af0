"""The figures: from rows to panels, medians and quartiles over examples."""

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nystromformer.lab.figures import new_figure

Rows = Sequence[Mapping[str, Any]]
CELL = 2.2  # inches of a matrix


def draw_landmarks(rows: Rows) -> Figure:
    """Error against the number of landmarks, a line for each choice of them."""
    figure, panels = _panels(rows)
    for where, axes in panels.items():
        for choice in dict.fromkeys(row["landmarks"] for row in rows):
            chosen = [r for r in _of(rows, where) if r["landmarks"] == choice]
            _draw_medians(axes, chosen, "num_landmarks", "error", choice)
        counts = sorted({row["num_landmarks"] for row in rows})
        axes.set(
            xscale="log", yscale="log", xlabel="landmarks", ylabel="relative error"
        )
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False)
    return figure


def draw_iterations(rows: Rows) -> Figure:
    """Error against pinv iterations; dashed with the exact inverse."""
    figure, panels = _panels(rows)
    for where, axes in panels.items():
        counts = sorted({row["num_landmarks"] for row in _of(rows, where)})
        for i, count in enumerate(counts):
            chosen = [r for r in _of(rows, where) if r["num_landmarks"] == count]
            iterated = [r for r in chosen if r["inverse"] == "iterative"]
            exact = [r["error"] for r in chosen if r["inverse"] == "exact"]
            label = f"{count} landmarks"
            _draw_medians(axes, iterated, "num_pinv_iters", "error", label, f"C{i}")
            axes.axhline(float(np.median(exact)), color=f"C{i}", linestyle="--")
        axes.set(yscale="log", xlabel="iterations", ylabel="relative error")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.plot([], [], color="grey", linestyle="--", label="exact inverse")
        axes.legend(frameon=False)
    return figure


def draw_bound(rows: Rows) -> Figure:
    """Error against the bound of Proposition 1, a panel for each layer."""
    layers = sorted({row["layer"] for row in rows})
    figure = new_figure(1, len(layers))
    for layer, axes in zip(layers, figure.axes, strict=True):
        chosen = [row for row in rows if row["layer"] == layer]
        for count in sorted({row["num_landmarks"] for row in chosen}):
            points = [r for r in chosen if r["num_landmarks"] == count]
            bounds, errors = ([r[x] for r in points] for x in ("bound", "error"))
            axes.scatter(bounds, errors, s=9, label=f"{count} landmarks")
        ends = [
            f([r[x] for r in chosen for x in ("bound", "error")]) for f in (min, max)
        ]
        axes.plot(ends, ends, color="grey", linestyle="--", label="error = bound")
        axes.set(xscale="log", yscale="log", title=f"layer {layer}")
        axes.set(xlabel="bound", ylabel="‖SV − ŜV‖∞")
        axes.legend(frameon=False)
    return figure


def draw_spectrum(rows: Rows) -> Figure:
    """Singular values of the attention matrix: median and quartiles over examples."""
    layers = sorted({row["layer"] for row in rows})
    figure = new_figure(1, len(layers))
    for layer, axes in zip(layers, figure.axes, strict=True):
        for head in sorted({row["head"] for row in rows}):
            chosen = _of(rows, (layer, head))
            _draw_medians(axes, chosen, "index", "singular_value", f"head {head}")
        axes.set(yscale="log", title=f"layer {layer}", xlabel="index")
        axes.set(ylabel="singular value / largest")
        axes.legend(frameon=False)
    return figure


def draw_matrices(
    pictures: Sequence[Sequence[np.ndarray]], rows: Rows, titles: Sequence[str]
) -> Figure:
    """A row for each head: S, and each Ŝ with its error, in the colours of S."""
    figure = new_figure(len(pictures), len(titles))
    figure.set_size_inches(CELL * len(titles), CELL * len(pictures) + 0.6)
    places = dict.fromkeys((row["layer"], row["head"]) for row in rows)
    grid = np.array(figure.axes, object).reshape(len(pictures), len(titles))
    for (layer, head), line, matrices in zip(places, grid, pictures, strict=True):
        errors = [row["error"] for row in _of(rows, (layer, head))]
        largest = np.quantile(matrices[0], 0.995)
        for axes, matrix, title in zip(line, matrices, titles, strict=True):
            axes.imshow(matrix, vmin=0, vmax=largest, cmap="viridis")
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            if axes in grid[0]:
                axes.set_title(title)
        line[0].set_ylabel(f"layer {layer}, head {head}")
        for axes, error in zip(line[1:], errors, strict=True):
            axes.set_xlabel(f"error {error:.2f}")
    return figure


def _panels(rows: Rows) -> tuple[Figure, dict[tuple[int, int], Axes]]:
    """A row of panels for each layer, a column for each head."""
    layers, heads = (sorted({row[x] for row in rows}) for x in ("layer", "head"))
    figure = new_figure(len(layers), len(heads))
    panels = dict(zip(itertools.product(layers, heads), figure.axes, strict=True))
    for (layer, head), axes in panels.items():
        axes.set_title(f"layer {layer}, head {head}")
    return figure, panels


def _of(rows: Rows, where: tuple[int, int]) -> list[Mapping[str, Any]]:
    return [row for row in rows if (row["layer"], row["head"]) == where]


def _draw_medians(
    axes: Axes, rows: Rows, x: str, y: str, label: str, color: str | None = None
) -> None:
    values = defaultdict(list)
    for row in rows:
        values[row[x]].append(row[y])
    quartiles = [np.quantile(values[k], (0.25, 0.5, 0.75)) for k in sorted(values)]
    if not quartiles:
        return
    lower, median, upper = np.transpose(quartiles)
    marker = "o" if len(values) < 30 else ""
    [line] = axes.plot(
        sorted(values), median, marker=marker, markersize=4, label=label, color=color
    )
    axes.fill_between(sorted(values), lower, upper, alpha=0.2, color=line.get_color())
