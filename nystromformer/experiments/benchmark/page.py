"""The benchmark's page: attentions down, lengths or tasks across."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.benchmark.programs import PASSES, Program, measure
from nystromformer.experiments.plotting import line_style, new_figure, save_figure

Row = Mapping[str, Any]
PAGE, FILE, DASH = "README.md", "benchmark.json", "—"
UNITS = ("ms", "MiB")
FIT_FROM = 2048  # below it, costs that do not depend on the length show
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length or task take
  turns, PyTorch's among them. Each call is waited for; compiling is not included.
- Memory: arguments, results and temporaries as compiled; {DASH} for PyTorch.
- ×: how many times faster or smaller than softmax.
- Exponent: p of c · lengthᵖ, fitted from length {FIT_FROM:,} on.
- In N: each batch in N parts, padded to the next of N lengths.
"""


def write_benchmark(
    groups: Iterable[list[Program]], out: Path, rounds: int, torch: Any = None
) -> None:
    """Measures groups of programs, and writes JSON, page and figure after each.

    torch: the module `torch_baselines`, or None.
    """
    made_by = provenance.source()
    made_by["versions"] |= torch.VERSIONS if torch else {}
    rows: list[dict[str, Any]] = []
    for programs in groups:
        markdown.open_folder(out, FILE)
        new = measure(programs, rounds)
        print(*tables(new), sep="\n", flush=True)
        rows += new
        lines = [*tables(rows), NOTES]
        if "task" not in rows[0]["key"]:
            save_figure(draw_curves(rows), out / "attention")
            lines.insert(0, "![Time and memory against the length](attention.png)\n")
        (out / FILE).write_text(json.dumps({**made_by, "rows": rows}, indent=1))
        (out / PAGE).write_text(markdown.page("Benchmark", made_by, lines))


def value(row: Row, unit: str) -> float | None:
    if unit == "ms":
        return 1e3 * float(np.median(row["seconds"])) if row["seconds"] else None
    return None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20


def tables(rows: Sequence[Row]) -> list[str]:
    lines = []
    for what in dict.fromkeys(row["key"]["what"] for row in rows):
        chosen = [row for row in rows if row["key"]["what"] == what]
        for unit in UNITS:
            lines += [f"## {what.capitalize()}: {unit}", "", *_table(chosen, unit), ""]
    return lines


def draw_curves(rows: Sequence[Row]) -> Figure:
    """Time and memory against the length: a row of panels a pass."""
    figure = new_figure(len(PASSES), len(UNITS))
    lengths = sorted({row["key"]["length"] for row in rows})
    panels = [(what, unit) for what in PASSES for unit in UNITS]
    for axes, (what, unit) in zip(figure.axes, panels, strict=True):
        chosen = [row for row in rows if row["key"]["what"] == what]
        for index, (label, curve) in enumerate(curves(chosen, unit).items()):
            style = {**line_style(index), "marker": ".", "label": label}
            axes.plot([*curve], [*curve.values()], **style)
        axes.set(title=what, ylabel=unit, xlabel="length", xscale="log", yscale="log")
        axes.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
        axes.minorticks_off()
        set_value_ticks(axes)
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    figure.axes[1].legend(handles=figure.axes[0].lines, fontsize="small", **place)
    return figure


def set_value_ticks(axes: Any) -> None:
    """Ticks between the powers of ten of a y axis that has few of them."""
    low, high = axes.get_ylim()
    if high > 1000 * low:
        return
    is_narrow = high < 10 * low
    locator = MaxNLocator(5) if is_narrow else LogLocator(subs=(1, 2, 5))
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter("{x:g}")


def curves(rows: Sequence[Row], unit: str) -> dict[str, dict[int, float]]:
    """attention -> length -> known value."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if number := value(row, unit):
            found.setdefault(row["key"]["attention"], {})[row["key"]["length"]] = number
    return found


def exponent(curve: Mapping[int, float]) -> str:
    """p of c · lengthᵖ by least squares of logarithms; it takes two lengths."""
    fitted = {n: number for n, number in curve.items() if n >= FIT_FROM}
    if len(fitted) < 2:
        return DASH
    logs = np.log([*fitted]), np.log([*fitted.values()])
    return f"{np.polyfit(*logs, deg=1)[0]:z.2f}"


def _table(rows: Sequence[Row], unit: str) -> list[str]:
    """With factors of softmax, and exponents where lengths stand across."""
    columns = list(dict.fromkeys(map(_column, rows)))
    found = {(row["key"]["attention"], _column(row)): row for row in rows}
    table = []
    for label in dict.fromkeys(row["key"]["attention"] for row in rows):
        ours, exact = ([found.get((x, c)) for c in columns] for x in (label, "softmax"))
        cells = [_cell(x, y, unit) for x, y in zip(ours, exact, strict=True)]
        table.append([label, *cells])
    if "task" not in rows[0]["key"]:
        powers = curves(rows, unit)
        table = [[*line, exponent(powers.get(line[0], {}))] for line in table]
        columns.append("exponent")
    return markdown.table(["attention", *columns], table)


def _cell(row: Row | None, exact: Row | None, unit: str) -> str:
    """As in "9.92 (9.8–10.1) · 17×"."""
    if row is None or (number := value(row, unit)) is None:
        return DASH if row is None or row["seconds"] else "out of memory"
    text = f"{number:.4g}"
    if unit == "ms":
        lower, upper = 1e3 * np.quantile(row["seconds"], (0.25, 0.75))
        text = f"{number:.3g} ({lower:.3g}–{upper:.3g})"
    softmax = value(exact, unit) if exact and exact is not row else None
    factor = softmax / number if softmax else 0
    return f"{text} · {factor:,.{0 if factor >= 10 else 1}f}×" if factor else text


def _column(row: Row) -> str:
    key, length = row["key"], f"{row['key']['length']:,}"
    return f"{key['task']} {key['batch_size']} × {length}" if "task" in key else length
