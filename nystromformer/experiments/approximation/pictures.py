"""The pictures of a study: errors, spectra, exchanged layers, and matrices of heads.

The matrices are S, what replaces it, and the inverses.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nystromformer.experiments.approximation import columns, measurements
from nystromformer.experiments.approximation.measurements import HeadMatrices
from nystromformer.experiments.approximation.swap import (
    ALL_LAYERS,
    BEST_LAYERS,
    MAX_LOSS_ALONE,
    ONE_LAYER,
    Swaps,
)
from nystromformer.experiments.plotting import STROKES, attention_styles, new_figure
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.factors import (
    nystrom_factors,
    nystrom_rows,
    softmax_matrix,
    standard_nystrom,
)
from nystromformer.metrics import is_rate

MAX_PANELS = 12  # in a figure of errors, each for a head
PANEL_COLUMNS = 4
LEGEND_COLUMNS = 2  # for each column of panels
MAX_CURVES_WITH_LEGEND = 12
# The shares of the ranks at which spectra are compared, in steps of 1/64, so that
# QUARTER is one of them.
RANKS = np.linspace(0, 1, 65)
QUARTER = 0.25
WIDTH_OF_PICTURES = 5.4  # inches for a row
FONT_SIZE = 8  # points
PICTURED_HEADS = 6


def evenly_spaced(items: Sequence[Any], num_items: int) -> list[Any]:
    """Returns the items, or `num_items` of them from the first to the last."""
    positions = np.linspace(0, len(items) - 1, min(num_items, len(items)))
    return [items[position] for position in positions.round().astype(int)]


def draw_errors(rows: pd.DataFrame, x: str) -> Figure:
    """Draws the error against a column: a panel for each head, a line for each method.

    Of more than MAX_PANELS heads, evenly spaced ones are drawn. Rows in which the
    column is empty, such as those of the exact inverse, which has no number of
    iterations, are drawn as a dashed line at their median.

    Args:
      rows: the rows of `measure_errors` or `measure_causes`.
      x: the column of the horizontal axis.
    """
    heads = list(rows.groupby(["layer", "head"]))
    if len(heads) > MAX_PANELS:
        heads = evenly_spaced(heads, MAX_PANELS)
        num_columns = PANEL_COLUMNS
        figure = new_figure(MAX_PANELS // PANEL_COLUMNS, num_columns)
    else:
        num_columns = rows["head"].nunique()
        figure = new_figure(rows["layer"].nunique(), num_columns)

    colors = _method_colors(list(rows["method"].unique()))
    ticks = sorted(rows[x].dropna().astype(int).unique())
    for axes, ((layer, head), rows_of_head) in zip(figure.axes, heads, strict=True):
        methods = rows_of_head.groupby("method", sort=False)
        for method, rows_of_method in methods:
            color = colors[method]
            _draw_method(axes, rows_of_method, x, label=method, color=color)
        axes.set(title=f"layer {layer}, head {head}", ylabel="relative error")
        axes.set(xscale="log", yscale="log", xlabel=x)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())

    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=LEGEND_COLUMNS * num_columns,
        frameon=False,
        fontsize=FONT_SIZE,
    )
    return figure


def _method_colors(methods: Sequence[str]) -> dict[str, Any]:
    """The colour of each method: that of its attention, or a shade for each number."""
    if all(method.split()[0].isdigit() for method in methods):  # as in "4 landmarks"
        shades = colormaps["viridis"](np.linspace(0, 0.9, len(methods)))
        return dict(zip(methods, map(tuple, shades), strict=True))
    names = {x: "nystrom" if x == columns.SEGMENT_MEANS else x for x in methods}
    styles = attention_styles(names.values())
    return {method: styles[name]["color"] for method, name in names.items()}


def _draw_method(
    axes: Any, rows: pd.DataFrame, x: str, *, label: str, color: Any
) -> None:
    """Draws the median over sequences and seeds, and the quartiles as a band."""
    errors = rows.groupby(x)["error"]
    median = errors.median()
    axes.plot(median, "o-", markersize=4, label=label, color=color)
    axes.fill_between(
        median.index,
        errors.quantile(0.25),
        errors.quantile(0.75),
        alpha=0.2,
        color=color,
    )
    errors_without_x = rows["error"][rows[x].isna()]
    if len(errors_without_x):
        axes.axhline(errors_without_x.median(), color=color, linestyle="--")


def draw_spectrum(rows: pd.DataFrame) -> Figure:
    """Draws cumulative normalised singular values of S, as Linformer's Fig. 1.

    The left panel has a line for each layer and head, the median over sequences. The
    right one has the values of these lines at a quarter of the ranks: Linformer's 128
    of 512.

    Args:
      rows: the rows of `measure_spectra`.
    """
    curves = cumulative_spectra(rows)
    figure = new_figure(1, 2)
    left, right = figure.axes
    num_layers = curves.index.unique("layer").size

    for (layer, head), curve in curves.iterrows():
        label = f"layer {layer}, head {head}"
        # Layers differ in their shades, and heads in their strokes.
        shade = colormaps["viridis"](0.9 * layer / max(1, num_layers - 1))
        stroke = STROKES[head % len(STROKES)]
        left.plot(curve, label=label, color=shade, linestyle=stroke)
    left.axvline(QUARTER, color="grey", linewidth=0.8)
    left.set(xlabel="rank / n", ylabel="cumulative normalised singular value")
    if len(curves) <= MAX_CURVES_WITH_LEGEND:
        left.legend(frameon=False, fontsize=FONT_SIZE)

    at_quarter = curves[QUARTER].unstack()
    image = right.imshow(at_quarter, vmin=0, vmax=1, cmap="cividis", aspect="auto")
    for (layer, head), value in curves[QUARTER].items():
        right.annotate(
            f"{value:.2f}",
            (head, layer),
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color="black" if value > 0.5 else "white",
        )
    right.set(title="at rank n / 4", xlabel="head", ylabel="layer")
    right.set_xticks(range(at_quarter.shape[1]))
    right.set_yticks(range(at_quarter.shape[0]))
    right.grid(visible=False)
    figure.colorbar(image, ax=right)
    return figure


def cumulative_spectra(rows: pd.DataFrame) -> pd.DataFrame:
    """Sums the largest singular values, over the sum of all, by rank.

    Args:
      rows: the rows of `measure_spectra`.

    Returns:
      A row for each layer and head, the median over sequences, and a column for each
      rank / n.
    """
    curves = []
    for _, values in rows.groupby(["layer", "head", "example"])["singular_value"]:
        sums = np.cumsum([0.0, *values])
        sum_ranks = np.linspace(0, 1, len(sums))
        curves.append(np.interp(RANKS, sum_ranks, sums / sums[-1]))
    index = rows.groupby(["layer", "head", "example"]).size().index
    by_example = pd.DataFrame(curves, index=index, columns=RANKS)
    return by_example.groupby(["layer", "head"]).median()


def draw_swaps(swaps: Swaps) -> Figure:
    """Draws the differences: all layers by kind, each layer alone, the best layers."""
    scale = 100 if is_rate(swaps.metric) else 1

    def rows(group: str) -> pd.DataFrame:
        of_group = swaps.rows(group)
        return of_group.assign(
            change=scale * of_group["difference"],
            change_noise=scale * of_group["noise"],
        )

    unit = f"{swaps.metric}, points" if scale == 100 else swaps.metric
    figure = new_figure(columns=3)
    by_kind, by_layer, by_number = figure.axes
    _draw_kinds(by_kind, rows(ALL_LAYERS))
    by_kind.set_ylabel(unit)
    min_limit = scale * MAX_LOSS_ALONE
    image = _draw_layers(by_layer, rows(ONE_LAYER), min_limit)
    figure.colorbar(image, ax=by_layer)
    _draw_best_layers(by_number, rows(BEST_LAYERS))
    for axes in (by_kind, by_number):
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.legend(frameon=False, fontsize=FONT_SIZE)
    return figure


def _draw_kinds(axes: Any, rows: pd.DataFrame) -> None:
    """Draws the changes by the number of landmarks, a line for each kind.

    That of segment means, which layers get by the advice, is thicker and in front.
    """
    for kind, rows_of_kind in rows.groupby("kind", sort=False):
        is_advised = kind == columns.SEGMENT_MEANS
        axes.errorbar(
            rows_of_kind["num_landmarks"],
            rows_of_kind["change"],
            rows_of_kind["change_noise"],
            marker="o",
            label=kind,
            linewidth=3 if is_advised else 1.5,
            elinewidth=1.5,
            zorder=3 if is_advised else 2,
        )
    axes.set(title="all layers exchanged", xlabel="landmarks", xscale="log")
    counts = sorted(rows["num_landmarks"].unique())
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())


def _draw_layers(axes: Any, rows: pd.DataFrame, min_limit: float) -> Any:
    """Draws the change of each layer by its number of landmarks; returns the image.

    The colours reach as far as the largest change, and at least to `min_limit`.
    """
    changes = rows.assign(layer=rows["layers"].astype(int)).pivot(
        index="layer", columns="num_landmarks", values="change"
    )
    limit = max(abs(changes.to_numpy()).max(), min_limit)
    image = axes.imshow(
        changes, norm=TwoSlopeNorm(0, -limit, limit), cmap="RdBu", aspect="auto"
    )
    for (row, column), change in np.ndenumerate(changes.to_numpy()):
        axes.annotate(
            f"{change:.2f}",
            (column, row),
            ha="center",
            va="center",
            fontsize=FONT_SIZE,
            color="white" if abs(change) > 0.7 * limit else "black",
        )
    axes.set(title="one layer exchanged", xlabel="landmarks", ylabel="layer")
    axes.set_xticks(range(changes.shape[1]), [str(count) for count in changes])
    axes.set_yticks(range(changes.shape[0]))
    axes.grid(visible=False)
    return image


def _draw_best_layers(axes: Any, rows: pd.DataFrame) -> None:
    """Draws the changes by how many layers are exchanged, a line for each number."""
    rows = rows.assign(number=rows["layers"].str.split().str.len())
    for count, rows_of_count in rows.groupby("num_landmarks"):
        axes.plot(
            rows_of_count["number"],
            rows_of_count["change"],
            "o-",
            label=f"{count} landmarks",
        )
    axes.set(title="the layers that mind it least", xlabel="layers exchanged")
    axes.set_xticks(sorted(rows["number"].unique()))


def draw_matrices(
    layers: Sequence[AttentionInputs], counts: Sequence[int], pictured_count: int
) -> dict[str, Figure]:
    """Draws heads of the first sequence, as the supplement does.

    Args:
      layers: the inputs of each layer's attention.
      counts: numbers of landmarks in ascending order; "numbers" shows the last three.
      pictured_count: the number of landmarks in the other three figures.

    Returns:
      Figures by name:
        choices: S and Ŝ by the choice of landmarks; the last two are of the standard
          Nyström method, which samples S after the softmax.
        numbers: S and Ŝ by the number of landmarks.
        iterates: S and Ŝ by the inverse.
        inverses: the inverses themselves.
    """

    def approximate(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": pictured_count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)

    def scaled_inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        # Inverses differ by orders of magnitude and share one scale of colours.
        _, z, _ = nystrom_factors(
            query, key, mask, num_landmarks=pictured_count, **options
        )
        return z / abs(z).max()

    standard = functools.partial(standard_nystrom, num_landmarks=pictured_count)
    standard_options = {"after softmax": {}, "after, iterated": {"pinv": "iterative"}}
    choice_options = {
        label: {"landmarks": name} for name, label in columns.landmark_choices().items()
    }
    count_options = {f"{n} landmarks": {"num_landmarks": n} for n in counts[-3:]}
    inverse_options: dict[str, dict[str, Any]] = {
        columns.EXACT_INVERSE: {"pinv": "exact"}
    }
    for n in (2, 4, 6):
        inverse_options[f"{n} iterations"] = {"num_pinv_iters": n}
    iterate_options = inverse_options | {columns.DOUBLE_SOFTMAX: {"pinv": "identity"}}

    exact = {"exact": softmax_matrix}
    choices = _variants(approximate, choice_options)
    choices |= _variants(standard, standard_options)
    numbers = _variants(approximate, count_options)
    iterates = _variants(approximate, iterate_options)
    return {
        "choices": _draw(layers, exact | choices),
        "numbers": _draw(layers, exact | numbers),
        "iterates": _draw(layers, exact | iterates),
        "inverses": _draw(layers, _variants(scaled_inverse, inverse_options)),
    }


def _variants(
    function: Callable[..., Any], options_of_title: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[..., Any]]:
    """The function with each of these options."""
    return {
        title: functools.partial(function, **options)
        for title, options in options_of_title.items()
    }


def _draw(
    layers: Sequence[AttentionInputs], functions: Mapping[str, Callable[..., Any]]
) -> Figure:
    """Draws what functions of a head give for some heads of the first sequence."""
    compiled = {
        title: measurements.vmap_heads(function)
        for title, function in functions.items()
    }
    matrices_of_head = measurements.compute_matrices(layers, 0, compiled)
    heads = evenly_spaced(list(matrices_of_head), PICTURED_HEADS)
    return draw_pictures({head: matrices_of_head[head] for head in heads})


def draw_pictures(matrices_of_head: HeadMatrices) -> Figure:
    """Draws a row of matrices for each head: the first, and others with their errors.

    Args:
      matrices_of_head: (layer, head) -> title -> matrix.
    """
    num_rows = len(matrices_of_head)
    num_columns = len(next(iter(matrices_of_head.values())))
    width = WIDTH_OF_PICTURES / num_columns
    figure = new_figure(num_rows, num_columns)
    figure.set_size_inches(WIDTH_OF_PICTURES, (width + 0.15) * num_rows + 0.3)
    grid = np.array(figure.axes, object).reshape(num_rows, num_columns)
    for panels, ((layer, head), matrix_of_title) in zip(
        grid, matrices_of_head.items(), strict=True
    ):
        image = _draw_row(list(panels), list(matrix_of_title.values()))
        panels[0].set_ylabel(f"layer {layer}\nhead {head}", fontsize=FONT_SIZE)
        bar = figure.colorbar(image, ax=list(panels), extend="both", aspect=10)
        bar.ax.tick_params(labelsize=FONT_SIZE)
        bar.locator = MaxNLocator(2)

    titles = next(iter(matrices_of_head.values()))
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title.replace(" ", "\n"), fontsize=FONT_SIZE)
    return figure


def _draw_row(panels: Sequence[Any], matrices: Sequence[np.ndarray]) -> Any:
    """Draws matrices with the colours of the first one; returns the last image."""
    exact = matrices[0]
    low, high = np.quantile(exact, (0.005, 0.995))
    image = None
    for axes, matrix in zip(panels, matrices, strict=True):
        image = axes.imshow(
            matrix, interpolation="nearest", vmin=min(low, 0), vmax=high
        )
        axes.set(xticks=[], yticks=[])
        axes.grid(visible=False)
        error = np.linalg.norm(matrix - exact) / np.linalg.norm(exact)
        axes.set_xlabel("" if matrix is exact else f"{error:.2g}", fontsize=FONT_SIZE)
    return image
