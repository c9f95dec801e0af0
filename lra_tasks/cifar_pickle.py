"""CIFAR-10's batches as its authors pickled them, read without Python's reader.

That one imports and calls what it is told to, and numpy's part of it crashes on a wrong
state. Here nothing is imported or called: opcodes make lists, dicts and tuples.
"""

import pickletools
from typing import Any

import numpy as np

from lra_tasks.split import DataError

NUM_BYTES = 3072  # of a picture: 32 × 32, red, green, blue
MAX_OPCODES = 2**20  # of a pickle; 10,000 labels and names are far less
NAMES_OF_AN_ARRAY = {
    "numpy.core.multiarray _reconstruct",
    "numpy ndarray",
    "numpy dtype",
}


def parse_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 `[n, 3072]` and labels `[n]` of a dict pickled by Python 2."""
    try:
        batch = _unpickle(content)
        data, labels = batch[b"data"], batch[b"labels"]
    except DataError:
        raise
    except Exception as error:  # whatever a wrong pickle runs into
        name = type(error).__name__
        raise DataError(f"not a batch in pickle format ({name})") from error
    if type(labels) is not list or any(type(label) is not int for label in labels):
        raise DataError("its labels are not a list of integers")
    return _bytes_of_array(data), np.array(labels, np.int64)


class _Parts:
    """What numpy would make an array of, or its type, as it is in a pickle."""

    def __init__(self, made_from: Any):
        self.made_from, self.state = made_from, None


def _bytes_of_array(array: Any) -> np.ndarray:
    """The array uint8 `[n, 3072]` that numpy pickled as these parts."""
    match array:
        case _Parts(
            state=(1, (rows, 3072), _Parts(made_from=(b"u1", *_)), order, bytes(data))
        ) if type(rows) is int and len(data) == rows * NUM_BYTES:
            flat = np.frombuffer(data, np.uint8)
            return flat.reshape((rows, NUM_BYTES), order="F" if order else "C")
    raise DataError("its data is not a uint8 array [n, 3072]")


def _unpickle(content: bytes) -> Any:
    """What a pickle of protocol 2 holds, if it is such as CIFAR-10's.

    Raises DataError, or whatever a wrong one runs into.
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = marks.pop()
        items = stack[at:]
        del stack[at:]
        return items

    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        if count > MAX_OPCODES:
            raise DataError(f"more than {MAX_OPCODES:,} opcodes in a pickle")
        match opcode.name:
            case "PROTO":
                pass
            case "NONE" | "BININT" | "BININT1" | "BININT2":
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "BINSTRING" | "SHORT_BINSTRING":
                stack.append(str(argument).encode("latin-1"))
            case "GLOBAL" if argument in NAMES_OF_AN_ARRAY:
                stack.append(argument)
            case "GLOBAL":
                raise DataError(f"the pickle asks for {str(argument)[:80]!r}: refused")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "MARK":
                marks.append(len(stack))
            case "APPEND":
                item = stack.pop()
                stack[-1].append(item)
            case "APPENDS":
                items = since_mark()
                stack[-1].extend(items)
            case "SETITEMS":
                items = since_mark()
                if any(type(key) is not bytes for key in items[::2]):
                    raise DataError("a key of the pickle is no text")
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(opcode.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "REDUCE":
                made_from = stack.pop()
                stack[-1:] = [_Parts(made_from)]
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case "BINPUT" | "LONG_BINPUT":
                memo[int(argument or 0)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[int(argument or 0)])
            case "STOP":
                return stack.pop()
            case name:
                raise DataError(f"the pickle uses {name}: refused")
    raise AssertionError("genops raises where there is no STOP")
