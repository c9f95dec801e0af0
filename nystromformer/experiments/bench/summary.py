"""The benchmark's tables and figure: attentions down, lengths or tasks across."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nystromformer.experiments import markdown
from nystromformer.experiments.bench.attentions import PASSES
from nystromformer.experiments.plotting import new_figure

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]
DASH = "—"
FIT_FROM = 2048  # below it, costs that do not depend on the length show
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length or task take
  turns, PyTorch's among them. Each call is waited for; compiling is not included.
- Memory: arguments, results and temporaries as compiled; {DASH} for PyTorch.
- ×: how many times faster or smaller than softmax.
- Exponent: p of c · lengthᵖ, fitted from length {FIT_FROM:,} on.
- In N: each batch in N parts, padded to the next of N lengths.
"""


def milliseconds(row: Row) -> float | None:
    """The median."""
    return 1e3 * float(np.median(row["seconds"])) if row["seconds"] else None


def mebibytes(row: Row) -> float | None:
    """The memory."""
    return None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20


UNITS: dict[str, Value] = {"ms": milliseconds, "MiB": mebibytes}


def tables(rows: Sequence[Row]) -> list[str]:
    """The lines of all tables that have rows."""
    lines = []
    for what in dict.fromkeys(row["key"]["what"] for row in rows):
        chosen = [row for row in rows if row["key"]["what"] == what]
        for unit, value in UNITS.items():
            lines += [f"## {what.capitalize()}: {unit}", "", *_pivot(chosen, value), ""]
    return lines + _beside_pytorch(rows)


def draw_curves(rows: Sequence[Row]) -> Figure:
    """Time and memory against the length: a row of panels a pass, a colour a family."""
    figure = new_figure(len(PASSES), len(UNITS))
    for axes, (what, unit) in zip(figure.axes, product(PASSES, UNITS), strict=True):
        chosen = [row for row in rows if row["key"]["what"] == what]
        families: list[str] = []
        for label, curve in _curves(chosen, UNITS[unit]).items():
            library, ours = _split(label)
            families.append(ours.partition("-")[0])
            [line] = axes.plot([*curve], [*curve.values()], markersize=4, label=label)
            line.set_color(f"C{[*dict.fromkeys(families)].index(families[-1])}")
            line.set_marker("os^Dv"[families.count(families[-1]) % 5])
            line.set_linestyle("--" if library else "-")
        lengths = sorted({row["key"]["length"] for row in chosen})
        axes.set(title=what, ylabel=unit, xlabel="length", xscale="log", yscale="log")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
        axes.minorticks_off()
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    figure.axes[1].legend(handles=figure.axes[0].lines, fontsize="small", **place)
    return figure


def exponent(curve: Mapping[int, float]) -> float | None:
    """p of c · lengthᵖ by least squares of logarithms; None for fewer than two."""
    fitted = {n: value for n, value in curve.items() if n >= FIT_FROM}
    if len(fitted) < 2:
        return None
    logs = np.log([*fitted]), np.log([*fitted.values()])
    return float(np.polyfit(*logs, deg=1)[0])


def _pivot(rows: Sequence[Row], value: Value) -> list[str]:
    """A table with factors of softmax, and exponents where lengths stand across."""
    columns = list(dict.fromkeys(map(_column, rows)))
    found = {(row["key"]["attention"], _column(row)): row for row in rows}
    powers = {label: exponent(curve) for label, curve in _curves(rows, value).items()}
    table = []
    for label in dict.fromkeys(row["key"]["attention"] for row in rows):
        exact = [found.get(("softmax", column)) for column in columns]
        cells = [found.get((label, column)) for column in columns]
        line = [_cell(*pair, value) for pair in zip(cells, exact, strict=True)]
        power = powers.get(label)
        line.append(DASH if power is None else f"{power:z.2f}")
        table.append([label, *line])
    if not any(powers.values()):
        return markdown.table(["attention", *columns], [row[:-1] for row in table])
    return markdown.table(["attention", *columns, "exponent"], table)


def _cell(row: Row | None, exact: Row | None, value: Value) -> str:
    if row is None or (number := value(row)) is None:
        return DASH if row is None or row["seconds"] else "out of memory"
    text = f"{number:.4g}"
    if value is milliseconds:
        text = spread([1e3 * x for x in row["seconds"]], ".3g")
    softmax = value(exact) if exact and exact is not row else None
    factor = softmax / number if softmax else 0
    return f"{text} · {factor:,.{0 if factor >= 10 else 1}f}×" if factor else text


def spread(values: Any, form: str) -> str:
    """Median (quartiles)."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:{form}} ({lower:{form}}–{upper:{form}})"


def _beside_pytorch(rows: Sequence[Row]) -> list[str]:
    """The lines of PyTorch's times ÷ ours, round by round."""
    table = []
    for theirs, ours in product(rows, rows):
        label = ours["key"]["attention"]
        library, counterpart = _split(theirs["key"]["attention"])
        same = counterpart == label.partition(" in ")[0] and all(
            of(theirs) == of(ours) for of in (_column, lambda row: row["key"]["what"])
        )
        if library and same and theirs["seconds"] and ours["seconds"]:
            ratio = spread(np.divide(theirs["seconds"], ours["seconds"]), ".2f")
            names = f"{library}-{counterpart} ÷ {label}"
            table.append([ours["key"]["what"], names, _column(ours), ratio])
    head = ["what", "attention", "at", "time"]
    return ["## Beside PyTorch", "", *markdown.table(head, table), ""] if table else []


def _split(label: str) -> tuple[str, str]:
    """The library of a baseline, or "", and the label of ours."""
    library, _, rest = label.partition("-")
    return (library, rest) if library in ("hf", "torch") else ("", label)


def _curves(rows: Sequence[Row], value: Value) -> dict[str, dict[int, float]]:
    """attention -> length -> known value."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        if number := value(row):
            curve = curves.setdefault(row["key"]["attention"], {})
            curve[row["key"]["length"]] = number
    return curves


def _column(row: Row) -> str:
    """The length, or task, batch and length."""
    key, length = row["key"], f"{row['key']['length']:,}"
    return f"{key['task']} {key['batch_size']} × {length}" if "task" in key else length
