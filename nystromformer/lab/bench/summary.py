"""Rows as Markdown: attentions down, lengths or tasks across."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nystromformer.lab import markdown
from nystromformer.lab.bench.curves import FIT_FROM, exponent, points
from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.bench.programs import PASSES

Row = Mapping[str, Any]
DASH = "—"
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length, a large matmul
  and a large copy take turns; the device is waited for, compiling is not in it.
- ×: how much faster than softmax, or how much less memory by the compiler, as in
  Table 1 of the paper.
- Beside PyTorch: median (quartiles) of the rounds' ratios.
- Memory: arguments, results and temporaries by the compiler / how far memory in use
  rises in one run, arguments not counted, by the device's counter or on a CPU by the
  process's resident memory, where a few MiB mean little; {DASH} where a counter is
  silent. benchmark.json has the compiler's three parts.
- Exponents: of c · lengthᵖ, fitted from length {FIT_FROM:,} on; of softmax's memory
  without meaning beyond 2²⁷ scores, as many as it holds at a time.
- Work: 10⁹ floating-point operations of matrix products / their rate as a share of the
  large matmul's; {DASH} where the lengths of the data decide.
- Traffic: 10⁹ bytes that the kernels read and write, by the compiler, which takes an
  inner loop for one of its turns and sees nothing in calls of libraries / their rate as
  a share of a large copy's; {DASH} as of work.
- Input side: which examples, and their batch out of arrays that a cache holds, which a
  train step makes itself; median (upper quartile).
- In N: each batch in N parts, padded to the next of N lengths.
- Over budget: compiled, not run, for memory.
"""


def time_cell(row: Row) -> str:
    """ms: median (lower–upper quartile)."""
    if row["stopped"]:
        return "over budget" if "budget" in row["stopped"] else row["stopped"]
    return _spread([1e3 * x for x in row["seconds"]])


def rate_cell(row: Row) -> str:
    """Steps a second: median (lower–upper quartile)."""
    return (
        time_cell(row) if row["stopped"] else _spread([1 / x for x in row["seconds"]])
    )


def memory_cell(row: Row) -> str:
    """MiB: by the compiler / measured."""
    both = (row["cost"] and row["cost"]["peak_bytes"], row["measured_bytes"])
    return " / ".join(_number(x, 2**20, ".4g") for x in both)


def work_cell(row: Row) -> str:
    """10⁹ operations / share of the matmul's rate."""
    work = _number(row["cost"] and row["cost"]["flops"], 1e9, ".3g")
    return f"{work} / {_number(row['matmul_share'], 1, '.0%')}"


def traffic_cell(row: Row) -> str:
    """10⁹ bytes / share of the copy's rate."""
    if row["copy_share"] is None:
        return DASH
    return f"{row['cost']['bytes_accessed'] / 1e9:.3g} / {row['copy_share']:.0%}"


def compile_cell(row: Row) -> str:
    """Seconds."""
    return _number(row["cost"] and row["cost"]["compile_seconds"], 1, ".1f")


COMPILING = ("seconds to compile", compile_cell)


def describe(row: Row, found: str = "") -> str:
    """A row as a line: what it is of, and what was found."""
    key = row["key"]
    found = found or f"{time_cell(row)} ms, {memory_cell(row)} MiB"
    where = f"{key.get('task', '')} {key['length']:,}".strip()
    return f"{where} {key['what']} {key['attention']}: {found}"


def tables(rows: Sequence[Row]) -> list[str]:
    """Lines: all tables of which there are rows."""
    lines = []
    for which_pass in PASSES:
        name = which_pass.replace("+", " and ").capitalize()
        chosen = [row for row in rows if row["key"]["what"] == which_pass]
        for unit, cell, quantity in (
            ("ms", time_cell, "seconds"),
            ("MiB", memory_cell, "bytes"),
            ("work", work_cell, ""),
            (*COMPILING, ""),
        ):
            curves = points(chosen, which_pass, quantity) if quantity else {}
            lines += pivot(f"{name}: {unit}", chosen, cell, "length", curves)
    steps = [row for row in rows if row["key"]["what"] == "train step"]
    sizes = {key["task"]: key for key in (row["key"] for row in steps)}
    listed = ", ".join(
        f"{task} {key['batch_size']} × {key['length']:,}" for task, key in sizes.items()
    )
    lines += [f"Batch × length: {listed}.", ""] if steps else []
    lines += pivot("Train steps a second", steps, rate_cell, "task")
    for unit, cell in (
        ("MiB", memory_cell),
        ("work", work_cell),
        ("traffic", traffic_cell),
        COMPILING,
    ):
        lines += pivot(f"Train step: {unit}", steps, cell, "task")
    return [*lines, *input_table(rows), *peer_table(rows)]


def input_table(rows: Sequence[Row]) -> list[str]:
    """Lines: the time of the input side ÷ that of a train step, round by round."""
    keyed = [(row["key"]["what"], row) for row in rows]
    inputs = {
        row["key"]["task"]: row["seconds"]
        for what, row in keyed
        if what == "input" and row["seconds"]
    }

    def share(row: Row) -> str:
        if row["stopped"]:
            return time_cell(row)
        pairs = zip(inputs[row["key"]["task"]], row["seconds"], strict=True)
        _, median, upper = quartiles([part / whole for part, whole in pairs])
        return f"{median:.2%} ({upper:.2%})"

    steps = [row for what, row in keyed if what == "train step" and not _peer(row)]
    chosen = [row for row in steps if row["key"]["task"] in inputs]
    return pivot("Input side: share of a train step", chosen, share, "task")


def peer_table(rows: Sequence[Row]) -> list[str]:
    """Lines: PyTorch's time and measured memory ÷ ours, round by round."""
    table = []
    for ours in (row for row in rows if row["seconds"]):
        key = ours["key"]
        family = key.get("attention", "").partition(" in ")[0]  # in so many parts
        for theirs in (row for row in rows if _peer(row) and row["seconds"]):
            if theirs["key"] != {**key, "attention": f"{_peer(theirs)}-{family}"}:
                continue
            pairs = zip(theirs["seconds"], ours["seconds"], strict=True)
            memory = theirs["measured_bytes"], ours["measured_bytes"]
            table.append(
                [
                    *(
                        key["what"],
                        f"{theirs['key']['attention']} ÷ {key['attention']}",
                    ),
                    f"{key.get('task', '')} {key['length']:,}".strip(),
                    _spread([x / y for x, y in pairs], ".2f"),
                    f"{memory[0] / memory[1]:.2f}" if all(memory) else DASH,
                ]
            )
    head = ["what", "attention", "where", "time", "memory"]
    return _section("Beside PyTorch", head, table)


def pivot(
    title: str,
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    across: str,
    curves: Mapping[str, Mapping[int, float]] = {},
) -> list[str]:
    """Lines: a row for each attention and a column for each `across`; none of none.

    Args:
      title: of the section.
      rows: one for each cell.
      cell: its text.
      across: a key.
      curves: attention -> length -> value: its factors of softmax and exponents show.
    """
    labels, columns = (
        list(dict.fromkeys(row["key"][x] for row in rows))
        for x in ("attention", across)
    )
    cells = {
        (row["key"]["attention"], row["key"][across]): cell(row) + _factor(row, curves)
        for row in rows
    }
    table = [
        [label, *(cells.get((label, column), DASH) for column in columns)]
        for label in labels
    ]
    heads = [f"{c:,}" if isinstance(c, int) else c for c in columns]
    if curves:
        heads.append("exponent")
        for line in table:
            line.append(_number(exponent(curves.get(line[0], {})), 1, ".2f"))
    return _section(title, ["attention", *heads], table)


def _factor(row: Row, curves: Mapping[str, Mapping[int, float]]) -> str:
    """What softmax takes at this length ÷ what this row takes, as in " · 3.1×"."""
    label, length = row["key"]["attention"], row["key"]["length"]
    ours, exact = (curves.get(x, {}).get(length) for x in (label, "softmax"))
    if not (ours and exact) or label == "softmax":
        return ""
    return f" · {exact / ours:,.{1 if exact < 10 * ours else 0}f}×"


def _section(
    title: str, head: Sequence[str], rows: Iterable[Sequence[str]]
) -> list[str]:
    rows = [*rows]
    return [f"## {title}", "", *markdown.table(head, rows), ""] if rows else []


def _spread(values: Sequence[float], form: str = ".3g") -> str:
    lower, median, upper = quartiles(values)
    return f"{median:{form}} ({lower:{form}}–{upper:{form}})"


def _number(value: float | None, unit: float, form: str) -> str:
    return DASH if value is None else format(value / unit, form)


def _peer(row: Row) -> str:
    """The library of a peer's row, or ""."""
    library, _, _ = row["key"].get("attention", "").partition("-")
    return library if library in ("hf", "torch") else ""
