"""Reads the kernels of a compiled program and the bytes that they move.

A loop whose turns the compiler knows counts as often as it turns. Where there is one
that it does not know, the loop over train steps, its body alone is counted: one step.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

FREE = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "after-all"}
UPDATE = "dynamic-update-slice"
IN_PART = {"dynamic-slice", "gather", "slice", UPDATE}  # of their first operand
HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
SHAPE = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\S+"
LINE = re.compile(rf"\s+(?:ROOT )?%?([\w.\-]+) = ({SHAPE}) ([\w\-]+)\((.*)$")
ARRAY = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\](\{[^}]*\})?")


class Instruction(NamedTuple):
    """One line: rest is all that follows the opcode."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """Their names."""
        return re.findall(r"%([\w.\-]+)", self.rest.split(")")[0])

    def called(self, role: str) -> str:
        """The computation of that name."""
        return re.findall(rf"\b{role}=%?([\w.\-]+)", self.rest)[0]

    def turns(self) -> int:
        """The number of iterations of a loop, 0 if unknown."""
        match = re.search(r'"known_trip_count":\{"n":"(\d+)"', self.rest)
        return int(match[1]) if match else 0


Computations = dict[str, list[Instruction]]


def kernel_bytes(text: str) -> list[int]:
    """The bytes that each kernel of a program reads and writes, in its order.

    Args:
      text: HLO after optimisation, as `compiled.as_text()` gives it.
    """
    found: Computations = {}
    entry, current = "", []
    for line in text.splitlines():
        if head := HEAD.match(line):
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif match := LINE.match(line):
            current.append(Instruction(*match.groups()))
    for instruction in found[entry]:
        if instruction.opcode == "while" and not instruction.turns():
            entry = instruction.called("body")
    return [*_kernels(found, entry)]


def num_bytes(shape: str) -> int:
    """Of an array or a tuple of them, but for those in a TPU's own fast memory."""
    total = 0.0
    for kind, bits, sizes, layout in ARRAY.findall(shape):
        size = 1 if kind == "pred" else int(bits or 0) / 8
        for axis in filter(None, sizes.split(",")):
            size *= int(axis)
        total += 0 if "S(1)" in layout else size
    return int(total)


def _kernels(found: Computations, name: str) -> Iterator[int]:
    shapes = {x.name: x.shape for x in found[name]}
    for x in found[name]:
        if x.opcode in FREE or x.opcode.endswith("-done"):
            continue
        if x.opcode == "while":
            yield from [*_kernels(found, x.called("body"))] * max(x.turns(), 1)
        elif x.opcode == "call":
            yield from _kernels(found, x.called("to_apply"))
        elif x.opcode == "conditional":
            named = [n for n in re.findall(r"%([\w.\-]+)", x.rest) if n in found]
            yield from max(([*_kernels(found, n)] for n in named), key=sum)
        else:
            yield _moved(x, shapes, found)


def _moved(kernel: Instruction, shapes: dict[str, str], found: Computations) -> int:
    """Bytes of the operands and the result; of slices and updates only the part."""
    inner, parameters = [kernel], kernel.operands
    if kernel.opcode == "fusion":
        inner = found[kernel.called("calls")]
        parameters = [x.name for x in inner if x.opcode == "parameter"]
        shapes = {x.name: x.shape for x in inner}
    total = 0
    for parameter in parameters:
        whole = num_bytes(shapes.get(parameter, ""))
        uses = [x for x in inner if parameter in x.operands]
        if all(x.opcode in IN_PART and x.operands[0] == parameter for x in uses):
            parts = (num_bytes(x.shape) for x in uses if x.opcode != UPDATE)
            whole = min(whole, sum(parts))
        total += whole
    root = inner[-1]
    written = shapes[root.operands[1]] if root.opcode == UPDATE else root.shape
    return total + num_bytes(written)
