"""Rows as Markdown: attentions down, lengths or tasks across."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from nystromformer.experiments import markdown
from nystromformer.experiments.bench.programs import PASSES

Row = Mapping[str, Any]
DASH = "—"
FIT_FROM = 2048  # below it, what does not depend on the length shows
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length, a large matmul
  and a large copy take turns. Each call is waited for; compilation is not included.
- ×: speed, or compiled memory, relative to softmax, as in Table 1 of the paper.
- Beside PyTorch: median (quartiles) of the rounds' ratios.
- Memory: arguments, results and temporaries as compiled / rise of memory in use during
  one run, without arguments, by the device's counter or, on a CPU, by the process's
  resident memory, which is inexact by a few MiB; {DASH} without a counter.
  benchmark.json has the compiler's three parts.
- Exponents: p of c · lengthᵖ, fitted from length {FIT_FROM:,} on. Ignore that of
  softmax's memory beyond 2²⁷ scores: it never holds more at a time.
- Work: 10⁹ floating-point operations of matrix products / their rate as a share of the
  large matmul's; {DASH} if they depend on the lengths of the data.
- Traffic: 10⁹ bytes that the kernels read and write, by the compiler, which counts one
  iteration of each inner loop and nothing inside library calls / their rate as a share
  of a large copy's; {DASH} as for work.
- In N: each batch in N parts, padded to the next of N lengths.
- Over budget: compiled but not run, for its memory.
"""


def seconds(row: Row) -> float | None:
    """The median."""
    return float(np.median(row["seconds"])) if row["seconds"] else None


def peak_bytes(row: Row) -> float | None:
    """By the compiler."""
    return row["cost"] and row["cost"]["peak_bytes"]


def time_cell(row: Row) -> str:
    """ms."""
    if row["stopped"]:
        return "over budget" if "budget" in row["stopped"] else row["stopped"]
    return spread([1e3 * x for x in row["seconds"]])


def rate_cell(row: Row) -> str:
    """Steps a second."""
    return time_cell(row) if row["stopped"] else spread([1 / x for x in row["seconds"]])


def numbers(*parts: tuple[str, float, str]) -> Callable[[Row], str]:
    """A cell of fields of a row or its cost, each with its unit and format."""

    def cell(row: Row) -> str:
        fields = {**(row.get("cost") or {}), **row}
        return " / ".join(
            number(fields.get(name), unit, form) for name, unit, form in parts
        )

    return cell


memory_cell = numbers(("peak_bytes", 2**20, ".4g"), ("measured_bytes", 2**20, ".4g"))
work_cell = numbers(("flops", 1e9, ".3g"), ("matmul_share", 1, ".0%"))
whole_traffic_cell = numbers(("bytes_accessed", 1e9, ".3g"), ("copy_share", 1, ".0%"))
compile_cell = numbers(("compile_seconds", 1, ".1f"))


def traffic_cell(row: Row) -> str:
    """The value, or a dash if it depends on the lengths of the data."""
    return DASH if row["copy_share"] is None else whole_traffic_cell(row)


def describe(row: Row, found: str = "") -> str:
    """A row as a line of text."""
    found = found or f"{time_cell(row)} ms, {memory_cell(row)} MiB"
    return f"{where(row)} {row['key']['what']} {row['key']['attention']}: {found}"


def tables(rows: Sequence[Row]) -> list[str]:
    """Lines: all tables that have rows."""
    lines = []
    for which_pass in PASSES:
        chosen = _of(which_pass, rows)
        name = which_pass.replace("+", " and ").capitalize()
        lines += pivot(f"{name}: ms", chosen, time_cell, seconds)
        lines += pivot(f"{name}: MiB", chosen, memory_cell, peak_bytes)
        lines += pivot(f"{name}: work", chosen, work_cell)
        lines += pivot(f"{name}: seconds to compile", chosen, compile_cell)
    steps = _of("train step", rows)
    sizes = {row["key"]["task"]: row["key"] for row in steps}
    listed = ", ".join(
        f"{task} {key['batch_size']} × {key['length']:,}" for task, key in sizes.items()
    )
    lines += [f"Batch × length: {listed}.", ""] if steps else []
    lines += pivot("Train steps a second", steps, rate_cell)
    lines += pivot("Train step: MiB", steps, memory_cell)
    lines += pivot("Train step: work", steps, work_cell)
    lines += pivot("Train step: traffic", steps, traffic_cell)
    lines += pivot("Train step: seconds to compile", steps, compile_cell)
    return [*lines, *peer_table(rows)]


def peer_table(rows: Sequence[Row]) -> list[str]:
    """Lines: PyTorch's time and measured memory ÷ ours, round by round."""
    table, timed = [], [row for row in rows if row["seconds"]]
    for ours in timed:
        label = ours["key"]["attention"]
        for theirs in timed:
            library, of = peer_of(theirs["key"]["attention"])
            same = {**ours["key"], "attention": f"{library}-{of}"} == theirs["key"]
            if not library or not same or label.partition(" in ")[0] != of:
                continue  # ours may be in so many parts
            pair = f"{library}-{of} ÷ {label}"
            time = spread(np.divide(theirs["seconds"], ours["seconds"]), ".2f")
            memory = theirs["measured_bytes"], ours["measured_bytes"]
            share = f"{memory[0] / memory[1]:.2f}" if all(memory) else DASH
            table.append([ours["key"]["what"], pair, where(ours), time, share])
    head = ["what", "attention", "where", "time", "memory"]
    return _section("Beside PyTorch", head, table)


def pivot(
    title: str,
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    value: Callable[[Row], float | None] | None = None,
) -> list[str]:
    """Lines: a row for each attention, a column for each task or length.

    Args:
      title: of the section.
      rows: one for each cell.
      cell: its text.
      value: of a row, if factors of softmax and exponents are to stand beside.
    """
    curves = points(rows, value) if value else {}
    across = "task" if any("task" in row["key"] for row in rows) else "length"
    cells: dict[str, dict[Any, str]] = {}
    for row in rows:
        line = cells.setdefault(row["key"]["attention"], {})
        line[row["key"][across]] = cell(row) + _factor(row, curves)
    columns = list(dict.fromkeys(row["key"][across] for row in rows))
    head = ["attention", *(f"{x:,}" if across == "length" else x for x in columns)]
    table = [[x, *(cells[x].get(column, DASH) for column in columns)] for x in cells]
    if curves:
        head.append("exponent")
        for line in table:
            line.append(number(exponent(curves[line[0]]), 1, ".2f"))
    return _section(title, head, table)


def points(
    rows: Iterable[Row], value: Callable[[Row], float | None]
) -> dict[str, dict[int, float]]:
    """attention -> length -> value, for known values."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        curve = curves.setdefault(row["key"]["attention"], {})
        if (found := value(row)) is not None:
            curve[row["key"]["length"]] = found
    return curves


def exponent(curve: Mapping[int, float]) -> float | None:
    """p of c · lengthᵖ by least squares of logarithms, from length FIT_FROM on.

    None with less than two points there, or a value of 0.
    """
    fitted = {n: value for n, value in curve.items() if n >= FIT_FROM}
    if len(fitted) < 2 or min(fitted.values()) <= 0:
        return None
    logs = np.log([*fitted]), np.log([*fitted.values()])
    return float(np.polyfit(*logs, deg=1)[0])


def spread(values: Any, form: str = ".3g") -> str:
    """Median (quartiles)."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    return f"{median:{form}} ({lower:{form}}–{upper:{form}})"


def number(value: float | None, unit: float, form: str) -> str:
    """A value in a unit, or a dash for none."""
    return DASH if value is None else format(value / unit, form)


def peer_of(label: str) -> tuple[str, str]:
    """The library of a peer, or "", and the key of our program."""
    library, _, rest = label.partition("-")
    return (library, rest) if library in ("hf", "torch") else ("", label)


def where(row: Row) -> str:
    """The task, if there is one, and the length."""
    return f"{row['key'].get('task', '')} {row['key']['length']:,}".strip()


def _of(what: str, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["key"]["what"] == what]


def _factor(row: Row, curves: Mapping[str, Mapping[int, float]]) -> str:
    """The ratio of softmax to this row at the same length, as in " · 3.1×"."""
    label, length = row["key"]["attention"], row["key"]["length"]
    ours, exact = (curves.get(x, {}).get(length) for x in (label, "softmax"))
    if not (ours and exact) or label == "softmax":
        return ""
    return f" · {exact / ours:,.{1 if exact < 10 * ours else 0}f}×"


def _section(title: str, head: Sequence[str], rows: Sequence[list[str]]) -> list[str]:
    return [f"## {title}", "", *markdown.table(head, rows), ""] if rows else []
