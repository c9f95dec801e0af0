"""CIFAR-10's batches as its authors pickled them, read without running anything.

Only the opcodes that such a pickle has are known, and a stand-in takes the place of
whatever it names, so that numpy, which crashes on a wrong state, never sees it.
"""

import io
import pickle
from typing import Any

import numpy as np

from lra_tasks.split import DataError

NUM_BYTES = 3072  # of a picture: 32 × 32, red, green, blue
ARRAY_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
OPCODES = (
    *(pickle.PROTO, pickle.STOP, pickle.MARK, pickle.GLOBAL, pickle.REDUCE),
    *(pickle.BUILD, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.BINSTRING, pickle.SHORT_BINSTRING),
    *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
    *(pickle.SETITEMS, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET),
)


class _Parts:
    """What numpy would make an array or a dtype of."""

    def __init__(self, *made_from: Any) -> None:
        self.made_from = made_from

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):  # the one in C makes a table of any size
    def find_class(self, module: str, name: str) -> type[_Parts]:
        if (module, name) not in ARRAY_NAMES:
            raise DataError(f"the pickle asks for {f'{module} {name}'[:80]!r}: refused")
        return _Parts

    def load_setitems(self: Any) -> None:
        items = self.pop_mark()
        if any(type(key) is not bytes for key in items[::2]):
            raise DataError("a key of the pickle is no text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    dispatch = {code[0]: pickle._Unpickler.dispatch[code[0]] for code in OPCODES}
    dispatch[pickle.SETITEMS[0]] = load_setitems


def parse_pickle(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 `[n, 3072]` and labels `[n]` of a dict pickled by Python 2."""
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        data, labels = batch[b"data"], batch[b"labels"]
    except DataError:
        raise
    except Exception as error:  # whatever a wrong pickle runs into
        name = type(error).__name__
        raise DataError(f"not a batch in pickle format ({name})") from error
    if type(labels) is not list or any(type(label) is not int for label in labels):
        raise DataError("its labels are not a list of integers")
    match data:
        case _Parts(
            state=(1, (rows, 3072), _Parts(made_from=(b"u1", *_)), order, bytes(data))
        ) if type(rows) is int and len(data) == rows * NUM_BYTES:
            flat = np.frombuffer(data, np.uint8)
            pictures = flat.reshape((rows, NUM_BYTES), order="F" if order else "C")
            return pictures, np.array(labels, np.int64)
    raise DataError("its data is not a uint8 array [n, 3072]")
