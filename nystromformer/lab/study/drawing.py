"""The figures: from rows to panels, medians and quartiles over examples."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nystromformer.lab.figures import new_figure
from nystromformer.lab.study.deviation import Pictures

Rows = Sequence[Mapping[str, Any]]
CELL = 2.2  # inches of a matrix
MOST_LABELS = 40  # tokens that are written at an axis


def draw_landmarks(rows: Rows) -> Figure:
    """Error against the number of landmarks, a line for each choice of them."""
    figure, panels = _panels(rows, ("layer", "head"))
    for axes, chosen in panels:
        for choice, of_choice in _apart(chosen, "landmarks"):
            _draw_medians(axes, of_choice, "num_landmarks", "error", choice)
        counts = sorted({row["num_landmarks"] for row in rows})
        axes.set(xscale="log", yscale="log", xlabel="landmarks")
        axes.set(ylabel="relative error")
        axes.set_xticks(counts, [str(n) for n in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.legend(frameon=False)
    return figure


def draw_iterations(rows: Rows) -> Figure:
    """Error against pinv iterations; dashed with the exact inverse."""
    figure, panels = _panels(rows, ("layer", "head"))
    for axes, chosen in panels:
        for i, (count, of_count) in enumerate(_apart(chosen, "num_landmarks")):
            color, by_inverse = f"C{i}", dict(_apart(of_count, "inverse"))
            _draw_medians(
                *(axes, by_inverse["iterative"], "num_pinv_iters", "error"),
                *(f"{count} landmarks", color),
            )
            exact = np.median([row["error"] for row in by_inverse["exact"]])
            axes.axhline(float(exact), color=color, linestyle="--")
        axes.set(yscale="log", xlabel="iterations", ylabel="relative error")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.plot([], [], color="grey", linestyle="--", label="exact inverse")
        axes.legend(frameon=False)
    return figure


def draw_bound(rows: Rows) -> Figure:
    """‖ŜV − SV‖∞ against the bound of Proposition 1, a panel for each layer."""
    figure, panels = _panels(rows, ("layer",))
    for axes, chosen in panels:
        for count, of_count in _apart(chosen, "num_landmarks"):
            points = np.array([(row["bound"], row["distance"]) for row in of_count])
            axes.scatter(*points.T, s=9, label=f"{count} landmarks")
        values = [row[x] for row in chosen for x in ("bound", "distance")]
        ends = [min(values), max(values)]
        axes.plot(ends, ends, color="grey", linestyle="--", label="error = bound")
        axes.set(xscale="log", yscale="log", xlabel="bound", ylabel="‖SV − ŜV‖∞")
        axes.legend(frameon=False)
    return figure


def draw_spectrum(rows: Rows) -> Figure:
    """How fast the singular values of S add up to their sum, as Linformer's Fig. 1.

    Left the share of the sum that the first r of n values have, a line of medians for
    each layer and head; right the share of the first quarter of them.
    """
    figure = new_figure(1, 2)
    left, right = figure.axes
    shares = np.linspace(0, 1, 65)
    at_quarter = {}
    for layer, of_layer in _apart(rows, "layer"):
        for head, of_head in _apart(of_layer, "head"):
            curves = []
            for _, of_example in _apart(of_head, "example"):
                sums = np.cumsum([0.0, *(row["singular_value"] for row in of_example)])
                ranks = np.linspace(0, 1, len(sums))
                curves.append(np.interp(shares, ranks, sums / sums[-1]))
            median = np.median(curves, axis=0)
            at_quarter[layer, head] = median[len(shares) // 4]
            style = {
                "color": f"C{layer}",
                "linestyle": ("-", "--", ":", "-.")[head % 4],
            }
            left.plot(shares, median, label=f"layer {layer}, head {head}", **style)
    left.axvline(0.25, color="grey", linewidth=0.8)
    left.set(xlabel="rank / n", ylabel="share of the sum of singular values")
    left.legend(frameon=False)
    size = np.max([*at_quarter], axis=0) + 1
    table = np.array([*at_quarter.values()]).reshape(size)
    image = right.imshow(table, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for (layer, head), value in at_quarter.items():
        right.text(head, layer, f"{value:.2f}", color="white", ha="center", va="center")
    right.set(xlabel="head", ylabel="layer", title="share at rank n / 4")
    right.set_xticks(range(size[1]))
    right.set_yticks(range(size[0]))
    right.grid(visible=False)
    figure.colorbar(image, ax=right)
    return figure


def draw_pictures(pictures: Pictures, tokens: Sequence[str] = ()) -> Figure:
    """A row for each head: a matrix, and others in its colours with their errors.

    Args:
      pictures: (layer, head) -> title -> matrix, the one that others stand for first.
      tokens: of the sequence; a few stand at the axes.
    """
    rows, columns = len(pictures), len(next(iter(pictures.values())))
    figure = new_figure(rows, columns)
    figure.set_size_inches(CELL * columns + 0.8, CELL * rows + 0.6)
    grid = np.array(figure.axes, object).reshape(rows, columns)
    for line, ((layer, head), titled) in zip(grid, pictures.items(), strict=True):
        exact = next(iter(titled.values()))
        low, high = np.quantile(exact, (0.005, 0.995))
        for axes, (title, matrix) in zip(line, titled.items(), strict=True):
            image = axes.imshow(matrix, vmin=min(low, 0), vmax=high, cmap="viridis")
            axes.set(xticks=[], yticks=[], title=title if axes in grid[0] else "")
            axes.grid(visible=False)
            if len(matrix) == len(tokens) <= MOST_LABELS:
                size = 72 * CELL / (1.5 * len(tokens) + 12)  # points
                axes.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=size)
                axes.set_yticks(range(len(tokens)), tokens, fontsize=size)
            if matrix is not exact:
                axes.set_xlabel(f"error {relative_error(matrix, exact):.2f}")
        line[0].set_ylabel(f"layer {layer}, head {head}")
        figure.colorbar(image, ax=[*line], extend="both", shrink=0.9)
    return figure


def relative_error(matrix: np.ndarray, exact: np.ndarray) -> float:
    """‖matrix − exact‖ / ‖exact‖ (Frobenius)."""
    return float(np.linalg.norm(matrix - exact) / np.linalg.norm(exact))


def _apart(rows: Rows, name: str) -> Iterator[tuple[Any, list[Mapping[str, Any]]]]:
    """The rows of each value of a field, in the order of their appearance."""
    for value in dict.fromkeys(row[name] for row in rows):
        yield value, [row for row in rows if row[name] == value]


def _panels(
    rows: Rows, names: Sequence[str]
) -> tuple[Figure, list[tuple[Axes, list[Mapping[str, Any]]]]]:
    """A row of panels for each layer, a column for each head; or one row of layers."""
    places = [sorted({row[name] for row in rows}) for name in names]
    figure = new_figure(*([1] + [len(x) for x in places])[-2:])
    panels = []
    for axes, place in zip(figure.axes, itertools.product(*places), strict=True):
        axes.set_title(", ".join(map("{} {}".format, names, place)))
        chosen = [r for r in rows if tuple(r[name] for name in names) == place]
        panels.append((axes, chosen))
    return figure, panels


def _draw_medians(
    axes: Axes, rows: Rows, x: str, y: str, label: str, color: str | None = None
) -> None:
    values = defaultdict(list)
    for row in rows:
        values[row[x]].append(row[y])
    if not values:
        return
    places = sorted(values)
    lower, median, upper = np.transpose(
        [np.quantile(values[place], (0.25, 0.5, 0.75)) for place in places]
    )
    style = {"marker": "o" if len(places) < 30 else "", "markersize": 4}
    [line] = axes.plot(places, median, label=label, color=color, **style)
    axes.fill_between(places, lower, upper, alpha=0.2, color=line.get_color())
