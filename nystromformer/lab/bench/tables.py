"""Rows as Markdown: attentions down, lengths or tasks across."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nystromformer.lab.bench.curves import FIT_FROM, exponent, points
from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.bench.programs import PASSES

Row = Mapping[str, Any]
DASH = "—"
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length, a large matmul
  and a large copy take turns; the device is waited for, compiling is not in it.
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
    lower, median, upper = (1e3 * x for x in quartiles(row["seconds"]))
    return f"{median:.3g} ({lower:.3g}–{upper:.3g})"


def rate_cell(row: Row) -> str:
    """Steps a second: median (lower–upper quartile)."""
    if row["stopped"]:
        return time_cell(row)
    lower, median, upper = (1 / x for x in reversed(quartiles(row["seconds"])))
    return f"{median:.3g} ({lower:.3g}–{upper:.3g})"


def memory_cell(row: Row) -> str:
    """MiB: by the compiler / measured."""
    compiled = row["cost"]["peak_bytes"] if row["cost"] else None
    return f"{_mib(compiled)} / {_mib(row['measured_bytes'])}"


def work_cell(row: Row) -> str:
    """10⁹ operations / share of the matmul's rate."""
    flops, share = row["cost"] and row["cost"]["flops"], row["matmul_share"]
    work = DASH if flops is None else f"{flops / 1e9:.3g}"
    return f"{work} / {DASH if share is None else f'{share:.0%}'}"


def traffic_cell(row: Row) -> str:
    """10⁹ bytes / share of the copy's rate."""
    share = row["copy_share"]
    if share is None:
        return DASH
    return f"{row['cost']['bytes_accessed'] / 1e9:.3g} / {share:.0%}"


def compile_cell(row: Row) -> str:
    """Seconds."""
    return f"{row['cost']['compile_seconds']:.1f}" if row["cost"] else DASH


def attention_tables(rows: Sequence[Row]) -> list[str]:
    """Lines: for each pass time, memory, work and compile time by length."""
    lines = []
    for which_pass in PASSES:
        chosen = [row for row in rows if row["key"]["what"] == which_pass]
        if not chosen:
            continue
        growth = {
            quantity: {
                label: exponent(curve)
                for label, curve in points(rows, which_pass, quantity).items()
            }
            for quantity in ("seconds", "bytes")
        }
        name = which_pass.replace("+", " and ").capitalize()
        lines += [
            f"## {name}: ms",
            *pivot(chosen, time_cell, "length", growth["seconds"]),
        ]
        lines += [
            f"## {name}: MiB",
            *pivot(chosen, memory_cell, "length", growth["bytes"]),
        ]
        lines += [f"## {name}: work", *pivot(chosen, work_cell, "length")]
        lines += [
            f"## {name}: seconds to compile",
            *pivot(chosen, compile_cell, "length"),
        ]
    return lines


def train_tables(rows: Sequence[Row]) -> list[str]:
    """Lines: of train steps by task what they take, and what of it the machine has."""
    chosen = [row for row in rows if row["key"]["what"] == "train step"]
    if not chosen:
        return []
    sizes = {
        row["key"]["task"]: f"{row['key']['task']} {row['key']['batch_size']} × "
        f"{row['key']['length']:,}"
        for row in chosen
    }
    lines = [f"Batch × length: {', '.join(sizes.values())}.", ""]
    lines += ["## Train steps a second", *pivot(chosen, rate_cell, "task")]
    lines += ["## Train step: MiB", *pivot(chosen, memory_cell, "task")]
    lines += ["## Train step: work", *pivot(chosen, work_cell, "task")]
    lines += ["## Train step: traffic", *pivot(chosen, traffic_cell, "task")]
    compile_times = pivot(chosen, compile_cell, "task")
    lines += ["## Train step: seconds to compile", *compile_times]
    return [*lines, *input_table(rows)]


def input_table(rows: Sequence[Row]) -> list[str]:
    """Lines: the time of the input side ÷ that of a train step, round by round."""
    inputs = {
        row["key"]["task"]: row["seconds"]
        for row in rows
        if row["key"]["what"] == "input"
    }

    def share(row: Row) -> str:
        if row["stopped"]:
            return time_cell(row)
        pairs = zip(inputs[row["key"]["task"]], row["seconds"], strict=True)
        _, median, upper = quartiles([part / whole for part, whole in pairs])
        return f"{median:.2%} ({upper:.2%})"

    chosen = [
        row
        for row in rows
        if row["key"]["what"] == "train step" and not _is_peer(row)
        if inputs.get(row["key"]["task"])
    ]
    if not chosen:
        return []
    return ["## Input side: share of a train step", *pivot(chosen, share, "task")]


def peer_table(rows: Sequence[Row]) -> list[str]:
    """Lines: PyTorch's time and measured memory ÷ ours, round by round."""
    peers = {_sizes(row["key"]): row for row in rows if _is_peer(row)}
    table = [["what", "attention", "where", "time", "memory"]]
    for row in rows:
        other = peers.get(_sizes(row["key"]))
        if other is None or other is row or not (row["seconds"] and other["seconds"]):
            continue
        key, pairs = row["key"], zip(other["seconds"], row["seconds"], strict=True)
        lower, median, upper = quartiles([theirs / ours for theirs, ours in pairs])
        memory = (other["measured_bytes"], row["measured_bytes"])
        table.append(
            [
                *(key["what"], f"{other['key']['attention']} ÷ {key['attention']}"),
                f"{key.get('task', '')} {key['length']:,}".strip(),
                f"{median:.2f} ({lower:.2f}–{upper:.2f})",
                f"{memory[0] / memory[1]:.2f}" if all(memory) else DASH,
            ]
        )
    return ["## Beside PyTorch", *markdown(table)] if len(table) > 1 else []


def pivot(
    rows: Sequence[Row],
    cell: Callable[[Row], str],
    across: str,
    exponents: Mapping[str, float | None] | None = None,
) -> list[str]:
    """A Markdown table with a row for each attention and a column for each `across`."""
    columns = list(dict.fromkeys(row["key"][across] for row in rows))
    cells = {(row["key"]["attention"], row["key"][across]): cell(row) for row in rows}
    heads = [f"{c:,}" if isinstance(c, int) else c for c in columns]
    table = [["attention", *heads, *(["exponent"] if exponents else [])]]
    for label in dict.fromkeys(row["key"]["attention"] for row in rows):
        line = [label, *(cells.get((label, c), DASH) for c in columns)]
        if exponents:
            power = exponents.get(label)
            line.append(DASH if power is None else f"{power:.2f}")
        table.append(line)
    return markdown(table)


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, its heads first; numbers from the second column on."""
    head, *body = table
    rule = ["---", *["---:"] * (len(head) - 1)]
    return ["", *(f"| {' | '.join(line)} |" for line in (head, rule, *body)), ""]


def _is_peer(row: Row) -> bool:
    return row["key"].get("attention", "").startswith(("hf-", "torch-"))


def _sizes(key: Mapping[str, Any]) -> str:
    """What ours, in however many parts, and a peer have in common, as one name."""
    family = key.get("attention", "").removeprefix("hf-").removeprefix("torch-")
    family, *_ = family.partition(" in ")
    return repr(sorted({**key, "attention": family}.items(), key=lambda item: item[0]))


def _mib(num_bytes: float | None) -> str:
    return DASH if num_bytes is None else f"{num_bytes / 2**20:.4g}"
