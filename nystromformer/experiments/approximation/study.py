"""Measures the approximation on the queries, keys and values of a trained model."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from tqdm import tqdm

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.approximation import measurements
from nystromformer.experiments.plotting import line_style, new_figure, save_figure
from nystromformer.experiments.recorded_layers import Layer
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.factors import nystrom_factors, nystrom_rows
from nystromformer.landmarks import LANDMARKS

LABELS = {x: x.replace("_", " ") for x in LANDMARKS} | {"kmeans": "k-means"}
BASELINES = ("linformer", "performer")  # of as many rows or features as landmarks
ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
SEEDS = 8  # of random landmarks
MAX_PANELS = 12  # of a figure of errors, each for a head
PANEL_COLUMNS = 4
PICTURED_HEADS = 6
Frame = Any  # of pandas, whose own types say too little
PAGE = 5.4  # inches of a row of pictures
FONT = 8  # points


def write_study(
    run: TrainedRun,
    out: Path,
    *,
    examples: int,
    landmarks: Sequence[int] | None = None,
    data_dir: str | None = None,
) -> None:
    """Writes the page, its figures, and their numbers as CSV.

    It is about the longest examples of validation. landmarks: numbers of them; None =
    powers of two below the longest sequence, and the run's own number; ConfigError for
    as many as tokens.
    """
    data = run.task.load("validation", data_dir or run.config.task.data_dir)
    rows = np.arange(len(data.labels))[:, None] if data.pairs is None else data.pairs
    longest = np.argsort(-data.lengths[rows].min(1), kind="stable")
    chosen = rows[longest[:examples]].ravel()
    layers = run.layers(data.inputs[chosen], data.lengths[chosen])
    most = int(max(layer.mask.sum(1).max() for layer in layers))
    run_landmarks = run.config.attention.options.get("num_landmarks", 0)
    counts = sorted(landmarks or default_landmarks(run_landmarks, most))
    if not counts or counts[-1] >= most:
        raise ConfigError(f"--landmarks must be below the longest sequence, {most}")
    pictured_count = max(x for x in counts if x <= max(64, counts[0]))
    if run_landmarks in counts:
        pictured_count = run_landmarks
    made_by = provenance.source()
    markdown.open_folder(out, "landmarks.csv")
    with jax.enable_x64(True):
        tables = measure_all(layers, counts)
        print("drawing the figures…", flush=True)
        figures = {
            "landmarks": draw_errors(tables["landmarks"], "num_landmarks"),
            "iterations": draw_errors(tables["iterations"], "num_pinv_iters"),
            "spectrum": draw_spectrum(tables["spectrum"]),
            **draw_matrices(layers, counts, pictured_count),
        }
    for name, rows in tables.items():
        rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    step = (run.result or {}).get("best_step", "?")  # it may still be in training
    lines = [
        f"- Run: {run.config.task.name} with {run.config.attention.name}, seed "
        f"{run.config.train.seed}, best weights of step {step}\n"
        f"- Inputs: queries, keys and values of {len(layers)} layers for the "
        f"{len(chosen)} longest sequences of validation, in the pictures the longest\n",
    ]
    for name, figure in figures.items():
        save_figure(figure, out / name)
        title = name.capitalize()
        caption = CAPTIONS[name].format(count=pictured_count)
        lines += [f"## {title}\n\n![{name}]({name}.png)\n\n{caption}\n"]
    (out / "README.md").write_text(markdown.page("Approximation", made_by, lines))
    print(f"{out}/README.md has {len(figures)} figures")


def default_landmarks(run_landmarks: int, most: int) -> set[int]:
    """Powers of two from 4 on and the run's own number, all below `most` tokens."""
    powers = {2**k for k in range(2, 10)}
    return {count for count in {*powers, run_landmarks} if 0 < count < most}


def evenly_spaced(items: Sequence[Any], most: int) -> list[Any]:
    """The items, or `most` of them from the first to the last."""
    places = np.linspace(0, len(items) - 1, min(most, len(items)))
    return [items[place] for place in places.round().astype(int)]


def measure_all(layers: Sequence[Layer], counts: Sequence[int]) -> dict[str, Frame]:
    methods, inverses = [], []
    for count in counts:
        size: dict[str, Any] = {"num_landmarks": count}
        methods += [
            {"method": label, **size, "landmarks": name, "landmark_seed": seed}
            for name, label in LABELS.items()
            for seed in range(SEEDS if name == "random" else 1)
        ]
        methods.append({"method": "double softmax", **size, "pinv": "identity"})
        methods += [{"method": x, **size, "attention": x} for x in BASELINES]
        size["method"] = f"{count} landmarks"
        inverses += [{**size, "num_pinv_iters": n} for n in ITERATIONS]
        inverses.append({**size, "pinv": "exact"})
    tables = {}
    for name, grid in {"landmarks": methods, "iterations": inverses}.items():
        print(f"measuring {name}: {len(grid)} settings…", flush=True)
        tables[name] = measurements.measure_errors(layers, tqdm(grid, disable=None))
    print("measuring spectra…", flush=True)
    return {**tables, "spectrum": measurements.spectra(layers)}


def draw_matrices(
    layers: Sequence[Layer], counts: Sequence[int], count: int
) -> dict[str, Figure]:
    """Heads of the longest example as matrices, as in Figs. 1-4 of the supplement.

    counts: numbers of landmarks, of which the largest stand side by side; count: the
    number in all other pictures.
    """

    def product(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)

    def inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        z = nystrom_factors(query, key, mask, num_landmarks=count, **options)[1]
        return z / abs(z).max()

    choices = {label: {"landmarks": x} for x, label in LABELS.items()}
    numbers = {f"{n} landmarks": {"num_landmarks": n} for n in counts[-3:]}
    inverses: dict[str, Any] = {"exact inverse": {"pinv": "exact"}}
    inverses |= {f"{n} iterations": {"num_pinv_iters": n} for n in (2, 4, 6)}
    iterates = inverses | {"double softmax": {"pinv": "identity"}}
    figures, exact = {}, {"exact": measurements.softmax_matrix}
    for name, first, function, columns in (
        ("choices", exact, product, choices),
        ("numbers", exact, product, numbers),
        ("iterates", exact, product, iterates),
        ("inverses", {}, inverse, inverses),
    ):
        functions = {title: partial(function, **x) for title, x in columns.items()}
        compiled = {x: measurements.of_heads(f) for x, f in (first | functions).items()}
        found = measurements.matrices(layers, 0, compiled)
        heads = evenly_spaced([*found], PICTURED_HEADS)
        figures[name] = draw_pictures({head: found[head] for head in heads})
    return figures


def draw_errors(rows: Frame, x: str) -> Figure:
    """The error against the column x: a panel for each head, a line for each method.

    Of more heads than MAX_PANELS some are drawn. Dashed: the error of the method's rows
    without an x.
    """
    heads = list(rows.groupby(["layer", "head"]))
    figure = new_figure(rows["layer"].nunique(), rows["head"].nunique())
    if len(heads) > MAX_PANELS:
        heads = evenly_spaced(heads, MAX_PANELS)
        figure = new_figure(MAX_PANELS // PANEL_COLUMNS, PANEL_COLUMNS)
    ticks = sorted(rows[x].dropna().astype(int).unique())
    for axes, ((layer, head), chosen) in zip(figure.axes, heads, strict=True):
        for i, (method, part) in enumerate(chosen.groupby("method", sort=False)):
            by_x, color = part.groupby(x)["error"], f"C{i}"
            median = by_x.median()
            axes.plot(median, "o-", markersize=4, label=method, color=color)
            quartiles = by_x.quantile(0.25), by_x.quantile(0.75)
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


def draw_pictures(pictures: measurements.Pictures) -> Figure:
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
        limits: dict[str, Any] = {"vmin": min(low, 0), "vmax": high}
        for axes, (title, matrix) in zip(line, titled.items(), strict=True):
            error = np.linalg.norm(matrix - exact) / np.linalg.norm(exact)
            image = axes.imshow(matrix, interpolation="nearest", **limits)
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


CAPTIONS = {
    "landmarks": f"""\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) by head, without the convolution, over valid tokens:
medians and quartiles over sequences of more tokens than landmarks ({SEEDS} seeds of
random ones). Double softmax has no inverse; Linformer and Performer are untrained, with
as many rows or features. At most {MAX_PANELS} heads are drawn. landmarks.csv has all,
and ‖ŜV − SV‖∞ and Proposition 1's bound.""",
    "iterations": "The same with segment means; dashed: LAPACK's pseudo-inverse.",
    "spectrum": "Singular values of S as in Linformer's Fig. 1: medians of sequences.",
    "choices": """\
S and Ŝ by the choice of {count} landmarks (supplement, Fig. 1), with errors.""",
    "numbers": "S and Ŝ by the number of landmarks (supplement, Fig. 2).",
    "iterates": "S and Ŝ of {count} landmarks by the inverse (supplement, Fig. 3).",
    "inverses": """\
A⁺ of {count} landmarks and its iterates (supplement, Fig. 4), over their largest
entries.""",
}
